//! What cannot be imported is refused by file, row and value, and nothing is left behind.

use super::*;

#[test]
fn bad_edges_are_refused_with_file_row_and_value() {
    let refusal = |change: &dyn Fn(&DataSet)| {
        let data = DataSet::new();
        change(&data);
        data.refusal(&ImportOptions::default())
    };
    let texts = [
        (
            "0,1\n1,6\n",
            "edges.csv, line 2: 6 is not a node; the graph has the nodes 0 to 5",
        ),
        ("0,1\n-1,2\n", "line 2: -1 is not a node"),
        ("-1,-2\n0,1\n", "line 1: -1 is not a node"),
        ("0,1\n# no\n\n1,2.0\n", "line 4: 2.0 is not a node"),
        ("0,99999999999999999999\n", "line 1: 99999999999999999999 is not a node"),
        ("a,b\nc,d\n", "line 2: c is not a node"),
        ("\u{feff}0,1\n", "line 1: \u{feff}0 is not a node"),
        ("0,1\n2\n", "line 2: '2' is not a source and a destination"),
        (
            "0,1,0.5\n",
            "line 1: '0,1,0.5' is not a source and a destination (weights",
        ),
    ];
    for (text, reason) in texts {
        let error = refusal(&|data| data.text("edges.csv", text));
        assert!(error.contains(reason), "expected '{reason}' in '{error}'");
    }
    let error = refusal(&|data| data.text("edges.csv", &"7".repeat(5000)));
    assert!(
        error.contains("line 1: '77777777777777777777...' is longer than 4096 bytes"),
        "{error}"
    );

    let error = refusal(&|data| {
        data.remove("edges.csv");
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(b"0,1\n1,2\n0,2\n3,4\n").unwrap();
        let mut packed = encoder.finish().unwrap();
        packed.truncate(packed.len() - 6);
        std::fs::write(data.path("edges.csv.gz"), packed).unwrap();
    });
    assert!(
        error.starts_with("cannot read") && error.ends_with("edges.csv.gz"),
        "{error}"
    );

    let edge_index = |shape: &'static [usize], values: &'static [i64]| {
        refusal(&|data| {
            data.remove("edges.csv");
            data.array("edge_index.npy", shape, values);
        })
    };
    let error = edge_index(&[2, 3], &[0, 1, 2, 1, 2, 6]);
    assert!(error.contains("edge_index.npy, edge 2: 6 is not a node"), "{error}");
    let error = edge_index(&[2, 3], &[0, -7, 2, 1, 2, 5]);
    assert!(error.contains("edge 1: -7 is not a node"), "{error}");
    let error = edge_index(&[3, 2], &[0, 1, 2, 3, 4, 5]);
    assert!(
        error.contains("has shape [3, 2], expected [2, number of edges]"),
        "{error}"
    );
    let error = refusal(&|data| {
        data.remove("edges.csv");
        data.array("edge_index.npy", &[2, 1], &[0.0f32, 1.5]);
    });
    assert!(error.contains("edge 0: 1.5 is not a node"), "{error}");
    let error = refusal(&|data| {
        data.remove("edges.csv");
        data.array("edge_index.npy", &[2, 4], &[0i64; 8]);
        let file = std::fs::File::options()
            .write(true)
            .open(data.path("edge_index.npy"))
            .unwrap();
        file.set_len(150).unwrap();
    });
    assert!(
        error.contains("edge_index.npy is 150 bytes long, but its header announces 192"),
        "{error}"
    );

    let csr = |indptr: &'static [i64], indices: &'static [i64]| {
        refusal(&|data| {
            data.remove("edges.csv");
            data.array("indptr.npy", &[indptr.len()], indptr);
            data.array("indices.npy", &[indices.len()], indices);
        })
    };
    let error = csr(&[0, 1, 1, 1, 1, 1], &[1]);
    assert!(
        error.contains("indptr.npy has shape [6], expected [7], one more than there are nodes"),
        "{error}"
    );
    let error = csr(&[1, 1, 1, 1, 1, 1, 1], &[1]);
    assert!(
        error.contains("indptr.npy, row 0: 1 is not 0, the first offset"),
        "{error}"
    );
    let error = csr(&[0, 2, 1, 2, 2, 2, 2], &[1, 2]);
    assert!(
        error.contains("indptr.npy, row 2: 1 is not an offset from 2, the one before, to 2"),
        "{error}"
    );
    let error = csr(&[0, 3, 3, 3, 3, 3, 3], &[1, 2]);
    assert!(error.contains("row 1: 3 is not an offset from 0"), "{error}");
    let error = csr(&[0, 1, 1, 1, 1, 1, 1], &[1, 2]);
    assert!(
        error.contains("row 6: 1 is not 2, the length of indices.npy"),
        "{error}"
    );
    let error = csr(&[0, 1, 2, 2, 2, 2, 2], &[1, 9]);
    assert!(error.contains("indices.npy, edge 1: 9 is not a node"), "{error}");
}

#[test]
fn missing_and_doubtful_files_are_refused() {
    let refusal = |change: &dyn Fn(&DataSet)| {
        let data = DataSet::new();
        change(&data);
        data.refusal(&ImportOptions::default())
    };
    let error = refusal(&|data| data.remove("edges.csv"));
    assert!(error.contains("has no edges (edges.csv,"), "{error}");
    let error = refusal(&|data| {
        data.remove("edges.csv");
        data.array("indptr.npy", &[7], &[0i64; 7]);
    });
    assert!(error.contains("has no indices.npy beside indptr.npy"), "{error}");
    let error = refusal(&|data| data.array("edge_index.npy", &[2, 0], &[0i64; 0]));
    assert!(error.contains("has both edges.csv and edge_index.npy"), "{error}");
    let error = refusal(&|data| data.remove("node-feat.npy"));
    assert!(
        error.contains("has no features (node-feat.npy or node-feat-csr.npz)"),
        "{error}"
    );
    let error = refusal(&|data| data.text("node-feat-csr.npz", ""));
    assert!(
        error.contains("has both node-feat.npy and node-feat-csr.npz"),
        "{error}"
    );
    let error = refusal(&|data| data.remove("node-label.npy"));
    assert!(error.contains("has no node-label.npy"), "{error}");
    let error = refusal(&|data| data.remove("split/valid.npy"));
    assert!(
        error.contains("has no split/train.npy, split/valid.npy and split/test.npy, all three"),
        "{error}"
    );
}

#[test]
fn bad_labels_are_refused_with_file_row_and_value() {
    let refusal = |options: &ImportOptions, change: &dyn Fn(&DataSet)| {
        let data = DataSet::new();
        change(&data);
        data.refusal(options)
    };
    let default = ImportOptions::default();
    let declared = ImportOptions {
        classes: Some(2),
        ..ImportOptions::default()
    };
    let error = refusal(&default, &|data| {
        data.array("node-label.npy", &[6], &[0i32, 1, -2, 0, 0, 0])
    });
    assert!(
        error.contains("node-label.npy, row 2: -2 is not a label; only -1 and NaN"),
        "{error}"
    );
    let error = refusal(&default, &|data| {
        data.array("node-label.npy", &[6], &[0f32, 1.0, 2.0, 0.0, 0.5, 0.0])
    });
    assert!(
        error.contains("node-label.npy, row 4: 0.5 is not a label; labels are whole"),
        "{error}"
    );
    let error = refusal(&default, &|data| {
        data.array("node-label.npy", &[6], &[0f64, f64::INFINITY, 2.0, 0.0, 0.0, 0.0])
    });
    assert!(
        error.contains("row 1: inf is not a label; labels are below 4294967295"),
        "{error}"
    );
    let error = refusal(&default, &|data| {
        data.array("node-label.npy", &[6], &[u64::MAX, 0, 0, 0, 0, 0])
    });
    assert!(error.contains("row 0: 18446744073709551615 is not a label"), "{error}");
    let error = refusal(&declared, &|_| ());
    assert!(
        error.contains("row 2: 2 is not a label; there are 2 classes, counted from 0"),
        "{error}"
    );
    let error = refusal(&default, &|data| data.array("node-label.npy", &[5], &[0i64; 5]));
    assert!(
        error.contains("node-label.npy has 5 nodes, but") && error.contains("node-feat.npy has 6"),
        "{error}"
    );
    let error = refusal(&default, &|data| data.array("node-label.npy", &[6, 2], &[0i64; 12]));
    assert!(
        error.contains("node-label.npy has shape [6, 2], expected [nodes] or [nodes, 1]"),
        "{error}"
    );
}

#[test]
fn bad_splits_are_refused_with_file_row_and_value() {
    let refusal = |change: &dyn Fn(&DataSet)| {
        let data = DataSet::new();
        change(&data);
        data.refusal(&ImportOptions::default())
    };
    let error = refusal(&|data| data.array("split/valid.npy", &[2], &[1i64, 3]));
    assert!(
        error.contains("valid.npy, row 1: 3 is in split/train.npy already"),
        "{error}"
    );
    let error = refusal(&|data| data.array("split/test.npy", &[1], &[1i64]));
    assert!(
        error.contains("test.npy, row 0: 1 is in split/valid.npy already"),
        "{error}"
    );
    let error = refusal(&|data| data.array("split/train.npy", &[3], &[0i64, 3, 0]));
    assert!(error.contains("train.npy, row 2: 0 is in this split twice"), "{error}");
    let error = refusal(&|data| data.array("split/train.npy", &[2], &[0i64, 6]));
    assert!(
        error.contains("train.npy, row 1: 6 is not a node; the graph has the nodes 0 to 5"),
        "{error}"
    );
    let error = refusal(&|data| data.array("split/train.npy", &[2], &[0i64, -1]));
    assert!(
        error.contains("train.npy, row 1: -1 is not a whole number from 0"),
        "{error}"
    );
    let error = refusal(&|data| data.array("split/train.npy", &[1, 2], &[0i64, 3]));
    assert!(
        error.contains("train.npy has shape [1, 2], expected [nodes of the split]"),
        "{error}"
    );
    let error = refusal(&|data| {
        let mut bytes = Header::new(Dtype::Bool, &[6]).encode();
        bytes.extend_from_slice(&[1, 0, 0, 0, 0, 0]);
        std::fs::write(data.path("split/train.npy"), bytes).unwrap();
    });
    assert!(
        error.contains("dtype |b1, expected the ids of the nodes (save `numpy.flatnonzero(mask)`)"),
        "{error}"
    );
}

#[test]
fn bad_dense_features_are_refused() {
    let refusal = |change: &dyn Fn(&DataSet)| {
        let data = DataSet::new();
        change(&data);
        data.refusal(&ImportOptions::default())
    };
    let error = refusal(&|data| {
        let mut values = [0.0f64; 12];
        values[7] = f64::NAN;
        data.array("node-feat.npy", &[6, 2], &values);
    });
    assert!(
        error.contains("node-feat.npy, row 3, column 1: NaN is not a finite number in 32 bits"),
        "{error}"
    );
    let error = refusal(&|data| data.array("node-feat.npy", &[12], &[0f32; 12]));
    assert!(
        error.contains("node-feat.npy has shape [12], expected [nodes, columns]"),
        "{error}"
    );
    let error = refusal(&|data| data.array("node-feat.npy", &[6, 0], &[0f32; 0]));
    assert!(
        error.contains("has shape [6, 0], expected [nodes, columns], with at least one column"),
        "{error}"
    );
    let error = refusal(&|data| data.array("node-feat.npy", &[0, 2], &[0f32; 0]));
    assert!(
        error.contains("node-feat.npy has 0 nodes; a graph holds from 1 to 4294967295"),
        "{error}"
    );
    let error = refusal(&|data| {
        let text = "{'descr': '|O', 'fortran_order': False, 'shape': (6, 2), }";
        let mut bytes = b"\x93NUMPY\x01\x00v\x00".to_vec();
        bytes.extend_from_slice(format!("{text:117}\n").as_bytes());
        bytes.extend_from_slice(b"\x80\x04pickled");
        std::fs::write(data.path("node-feat.npy"), bytes).unwrap();
    });
    assert!(
        error.contains("node-feat.npy holds Python objects (dtype |O)"),
        "{error}"
    );
}

#[test]
fn more_nodes_than_32_bits_can_number_are_refused() {
    let data = DataSet::new();
    // A hole in a file: 4 GiB of zeros that take no space.
    let header = Header::new(Dtype::U8, &[1 << 32, 1]).encode();
    std::fs::write(data.path("node-feat.npy"), &header).unwrap();
    let file = std::fs::File::options()
        .write(true)
        .open(data.path("node-feat.npy"))
        .unwrap();
    file.set_len(header.len() as u64 + (1 << 32)).unwrap();
    let error = data.refusal(&ImportOptions::default());
    assert!(
        error.contains("node-feat.npy has 4294967296 nodes; a graph holds from 1 to 4294967295"),
        "{error}"
    );
}

#[test]
fn bad_archives_are_refused_with_member_row_and_value() {
    let refusal = |change: &dyn Fn(&mut Members)| {
        let data = DataSet::new();
        let mut members = sparse_members();
        change(&mut members);
        data.archive(&members, CompressionMethod::Stored);
        data.refusal(&ImportOptions::default())
    };
    let error = refusal(&|members| drop(members.insert("format", format_member("csc"))));
    assert!(error.contains("its format is 'csc'; save it with"), "{error}");
    let error = refusal(&|members| drop(members.remove("indices")));
    assert!(error.contains("it has no member indices.npy"), "{error}");
    let error = refusal(&|members| drop(members.insert("shape", member(&[6i64]))));
    assert!(error.contains("its shape has 1 axes"), "{error}");
    let error = refusal(&|members| drop(members.insert("shape", member(&[6i64, 0]))));
    assert!(error.contains("it has no columns"), "{error}");
    let error = refusal(&|members| drop(members.insert("shape", member(&[5i64, 2]))));
    assert!(
        error.contains("node-label.npy has 6 nodes, but") && error.contains("has 5"),
        "{error}"
    );
    let error = refusal(&|members| drop(members.insert("shape", member(&[6i64, 1]))));
    assert!(
        error.contains("indices.npy, row 0: 1 is not a column; the matrix has 1"),
        "{error}"
    );
    let error = refusal(&|members| drop(members.insert("indptr", member(&[0i32, 1, 3, 5, 7, 11]))));
    assert!(error.contains("indptr has 6 values, the matrix 6 rows"), "{error}");
    let error = refusal(&|members| drop(members.insert("indptr", member(&[0i32, 3, 1, 5, 7, 9, 11]))));
    assert!(
        error.contains("indptr.npy, row 2: 1 is not an offset from 3"),
        "{error}"
    );
    let error = refusal(&|members| drop(members.insert("indptr", member(&[0i32, 1, 3, 5, 7, 9, 10]))));
    assert!(
        error.contains("indptr.npy, row 6: 10 is not 11, the length of indices"),
        "{error}"
    );
    let error = refusal(&|members| drop(members.insert("indices", member(&[-1i32; 11]))));
    assert!(
        error.contains("node-feat-csr.npz/indices.npy, row 0: -1 is not a whole number"),
        "{error}"
    );
    let error = refusal(&|members| drop(members.insert("data", member(&[f32::NAN; 11]))));
    assert!(
        error.contains("node-feat-csr.npz/data.npy, row 0: NaN is not a finite number"),
        "{error}"
    );
    let error = refusal(&|members| drop(members.insert("data", member(&[0f32; 10]))));
    assert!(error.contains("data has 10 values, indices 11"), "{error}");
    let error = refusal(&|members| {
        if let Some(bytes) = members.get_mut("data") {
            bytes.pop();
        }
    });
    assert!(
        error.contains("node-feat-csr.npz/data.npy") && error.contains("ends before value 11 of 11"),
        "{error}"
    );
    let error = refusal(&|members| {
        if let Some(bytes) = members.get_mut("data") {
            bytes.push(0);
        }
    });
    assert!(
        error.contains("node-feat-csr.npz/data.npy") && error.contains("goes on behind its last value"),
        "{error}"
    );

    // Cut short, and one bit flipped in the values.
    let data = DataSet::new();
    data.archive(&sparse_members(), CompressionMethod::Stored);
    let whole = std::fs::read(data.path("node-feat-csr.npz")).unwrap();
    std::fs::write(data.path("node-feat-csr.npz"), &whole[..whole.len() / 2]).unwrap();
    let error = data.refusal(&ImportOptions::default());
    assert!(error.contains("is not a readable archive"), "{error}");
    let mut flipped = whole;
    let needle = 5.5f64.to_le_bytes();
    let at = flipped.windows(8).position(|window| window == needle).unwrap();
    flipped[at] ^= 1;
    std::fs::write(data.path("node-feat-csr.npz"), flipped).unwrap();
    let error = data.refusal(&ImportOptions::default());
    assert!(error.contains("cannot read") && error.contains("data.npy"), "{error}");
}
