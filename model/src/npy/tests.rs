use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

/// A `.npy` file with any header text, as a program other than ours might write it.
fn file(version: u8, text: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = b"\x93NUMPY".to_vec();
    bytes.extend_from_slice(&[version, 0]);
    match version {
        1 => bytes.extend_from_slice(&(text.len() as u16).to_le_bytes()),
        _ => bytes.extend_from_slice(&(text.len() as u32).to_le_bytes()),
    }
    bytes.extend_from_slice(text.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// Pads like NumPy, so that the values are aligned.
fn padded(version: u8, text: &str) -> String {
    let fixed = if version == 1 { 10 } else { 12 };
    let length = (fixed + text.len() + 1).next_multiple_of(64) - fixed - 1;
    format!("{text:length$}\n")
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn put(&self, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join("array.npy");
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn write<T: Element>(path: &Path, shape: &[usize], values: &[T]) -> FileRecord {
    let mut writer = ArrayWriter::create(path, shape).unwrap();
    for chunk in values.chunks(7) {
        writer.write(chunk).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn the_header_is_byte_for_byte_what_numpy_writes() {
    // numpy.save of an int64 array of shape (3,), of shape (), and of a float32 array of shape (2, 3): NumPy 2.4.
    let expected = |text: &str| file(1, &format!("{text:117}\n"), &[]);
    for (dtype, shape, text) in [
        (
            Dtype::I64,
            &[3][..],
            "{'descr': '<i8', 'fortran_order': False, 'shape': (3,), }",
        ),
        (
            Dtype::I64,
            &[],
            "{'descr': '<i8', 'fortran_order': False, 'shape': (), }",
        ),
        (
            Dtype::F32,
            &[2, 3],
            "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }",
        ),
    ] {
        let header = Header::new(dtype, shape);
        assert_eq!(
            String::from_utf8_lossy(&header.encode()),
            String::from_utf8_lossy(&expected(text))
        );
        assert_eq!(header.data_start, 128);
    }
}

#[test]
fn versions_one_to_three_are_read_and_keys_may_come_in_any_order() {
    let folder = Folder::new();
    let data: Vec<u8> = [7u32, 8, 9].iter().flat_map(|value| value.to_le_bytes()).collect();
    for version in 1..=3 {
        for text in [
            "{'descr': '<u4', 'fortran_order': False, 'shape': (3,), }",
            "{\"shape\": (3L,), \"fortran_order\": False, \"descr\": \"<u4\"}",
            "{ 'fortran_order' : True , 'descr' : '<u4' , 'shape' : ( 1 , 3 ) }",
        ] {
            let path = folder.put(&file(version, &padded(version, text), &data));
            let array = MappedArray::<u32>::open(&path).unwrap();
            assert_eq!(&array[..], [7, 8, 9], "version {version}, {text}");
        }
    }
}

#[test]
fn what_cannot_be_mapped_is_refused_with_its_reason() {
    let folder = Folder::new();
    let values = [0u8; 24];
    let header = |descr: &str, fortran: &str, shape: &str| {
        padded(
            1,
            &format!("{{'descr': {descr}, 'fortran_order': {fortran}, 'shape': {shape}, }}"),
        )
    };
    let good = header("'<u4'", "False", "(2, 3)");
    let mut other_magic = file(1, &good, &values);
    other_magic[0] = b'P';
    let long = good.clone() + &" ".repeat(70_000 - good.len());
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (other_magic, "does not start with the magic"),
        (file(4, &good, &values), "format version is 4"),
        (file(1, &good, &values)[..40].to_vec(), "ends inside its header"),
        (file(1, &good, &values)[..4].to_vec(), "ends inside its header"),
        (Vec::new(), "ends inside its header"),
        (file(2, &long, &values), "70000 bytes long"),
        (
            file(1, &good, &values[..23]),
            "is 151 bytes long, but its header announces 152",
        ),
        (
            file(1, &good, &[0; 25]),
            "is 153 bytes long, but its header announces 152",
        ),
        (
            file(1, &header("'<f4'", "False", "(2, 3)"), &values),
            "dtype <f4, expected <u4",
        ),
        (
            file(1, &header("'>u4'", "False", "(2, 3)"), &values),
            "is big-endian (dtype >u4)",
        ),
        (
            file(1, &header("'|O'", "False", "(2, 3)"), &values),
            "holds Python objects (dtype |O)",
        ),
        (
            file(1, &header("'<U4'", "False", "(2, 3)"), &values),
            "dtype <U4, expected an integer or a float",
        ),
        (
            file(1, &header("[('a', '<u4')]", "False", "(6,)"), &values),
            "dtype of several fields",
        ),
        (
            file(1, &header("'<u4'", "True", "(2, 3)"), &values),
            "stored column by column",
        ),
        (
            file(1, &header("'<u4'", "Maybe", "(2, 3)"), &values),
            "neither True nor False",
        ),
        (file(1, &header("'<u4'", "False", "(2, -3)"), &values), "not a size"),
        (
            file(1, &header("'<u4'", "False", "(9999999999, 9999999999)"), &values),
            "beyond all memory",
        ),
        (
            file(1, &header("'<u4'", "False", "(4611686018427387904,)"), &values),
            "beyond all memory",
        ),
        (file(1, &header("'<u4'", "False", "(2, 3"), &values), "not a size"),
        (
            file(1, &padded(1, "{'descr': '<u4', 'shape': (6,)}"), &values),
            "no 'fortran_order'",
        ),
        (
            file(1, &padded(1, "{'fortran_order': False, 'shape': (6,)}"), &values),
            "no 'descr'",
        ),
        (
            file(1, &padded(1, "{'descr': '<u4', 'descr': '<u4'}"), &values),
            "'descr' twice",
        ),
        (
            file(1, &padded(1, "{'colour': 'red'}"), &values),
            "unknown key 'colour'",
        ),
        (file(1, &padded(1, "{'descr': '<u4"), &values), "without an end"),
        (file(1, &padded(1, "pickle"), &values), "lacks '{'"),
        (
            file(1, &format!("{} x", good.trim_end()), &values),
            "goes on behind the dictionary",
        ),
    ];
    for (bytes, reason) in cases {
        let path = folder.put(&bytes);
        let error = MappedArray::<u32>::open(&path).unwrap_err().to_string();
        assert!(error.contains(reason), "expected '{reason}' in '{error}'");
        assert!(error.contains("array.npy"), "no file in '{error}'");
    }
    let missing = folder.0.path().join("none.npy");
    let error = MappedArray::<u32>::open(&missing).unwrap_err().to_string();
    assert_eq!(error, format!("cannot open {}", missing.display()));
}

#[test]
fn unaligned_values_and_other_shapes_are_refused() {
    let folder = Folder::new();
    let text = "{'descr': '<u4', 'fortran_order': False, 'shape': (1,), }";
    let path = folder.put(&file(1, &format!("{text}  "), &[0; 4]));
    let error = MappedArray::<u32>::open(&path).unwrap_err().to_string();
    assert!(error.contains("not aligned"), "{error}");
    // Reading as a stream needs no alignment.
    assert_eq!(ArrayReader::open(&path).unwrap().read_all::<u32>().unwrap(), [0]);

    let path = folder.0.path().join("shaped.npy");
    write(&path, &[2, 3], &[0u32; 6]);
    let error = MappedArray::<u32>::open_shaped(&path, &[3, 2]).unwrap_err().to_string();
    assert!(error.contains("has shape [2, 3], expected [3, 2]"), "{error}");
}

#[test]
fn a_writer_insists_on_the_announced_number_of_values() {
    let folder = Folder::new();
    let path = folder.0.path().join("few.npy");
    let mut writer = ArrayWriter::<f32>::create(&path, &[2, 2]).unwrap();
    writer.write(&[1.0; 3]).unwrap();
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("announced with 4 values, but 3 were written"), "{error}");

    let path = folder.0.path().join("many.npy");
    let mut writer = ArrayWriter::<f32>::create(&path, &[2]).unwrap();
    let error = writer.write(&[1.0; 3]).unwrap_err().to_string();
    assert!(error.contains("announced with 2 values, but 3 were written"), "{error}");
    let error = ArrayWriter::<f32>::create(&path, &[2]).unwrap_err().to_string();
    assert!(error.starts_with("cannot create"), "{error}");
}

#[test]
fn the_record_is_the_size_and_checksum_of_the_whole_file() {
    let folder = Folder::new();
    let path = folder.0.path().join("array.npy");
    let record = write(&path, &[3], &[1u8, 2, 3]);
    let bytes = std::fs::read(&path).unwrap();
    assert_eq!(record.path, "array.npy");
    assert_eq!(record.bytes, bytes.len() as u64);
    assert_eq!(record.crc32c, crc32c::crc32c(&bytes));
}

#[test]
fn a_reader_names_row_and_value_of_what_does_not_fit() {
    let folder = Folder::new();
    let path = folder.0.path().join("pairs.npy");
    write(&path, &[3, 2], &[0i64, 1, 2, 3, -4, 5]);
    let mut reader = ArrayReader::open(&path).unwrap();
    let mut values: Vec<u32> = Vec::new();
    reader.read(&mut values, 4).unwrap();
    assert_eq!(values, [0, 1, 2, 3]);
    let error = reader.read(&mut values, 4).unwrap_err().to_string();
    assert!(
        error.contains("pairs.npy, row 2, column 0: -4 is not a whole number from 0"),
        "{error}"
    );
}

#[test]
fn a_reader_converts_every_type() {
    let folder = Folder::new();
    fn check<T: Element>(folder: &Folder, name: &str, values: [T; 3]) {
        let path = folder.0.path().join(format!("{name}.npy"));
        write(&path, &[3], &values);
        let read: Vec<f64> = ArrayReader::open(&path).unwrap().read_all().unwrap();
        assert_eq!(read, [0.0, 1.0, 2.0], "{name}");
        let read: Vec<u32> = ArrayReader::open(&path).unwrap().read_all().unwrap();
        assert_eq!(read, [0, 1, 2], "{name}");
    }
    check(&folder, "u8", [0u8, 1, 2]);
    check(&folder, "u16", [0u16, 1, 2]);
    check(&folder, "u32", [0u32, 1, 2]);
    check(&folder, "u64", [0u64, 1, 2]);
    check(&folder, "i8", [0i8, 1, 2]);
    check(&folder, "i16", [0i16, 1, 2]);
    check(&folder, "i32", [0i32, 1, 2]);
    check(&folder, "i64", [0i64, 1, 2]);
    check(&folder, "f32", [0f32, 1.0, 2.0]);
    check(&folder, "f64", [0f64, 1.0, 2.0]);
    let half = file(
        1,
        &padded(1, "{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }"),
        &[0x00, 0x3c, 0x00, 0xc0],
    );
    let read: Vec<f32> = ArrayReader::open(&folder.put(&half)).unwrap().read_all().unwrap();
    assert_eq!(read, [1.0, -2.0]);
}

#[test]
fn a_stream_that_ends_early_is_told_from_its_end() {
    let bytes = file(
        1,
        &padded(1, "{'descr': '<u4', 'fortran_order': False, 'shape': (3,), }"),
        &[0; 8],
    );
    let mut reader = ArrayReader::new(&bytes[..], PathBuf::from("member.npy")).unwrap();
    let error = reader.read_all::<u32>().unwrap_err().to_string();
    assert!(error.contains("member.npy"), "{error}");
    assert!(error.contains("ends before value 3 of 3"), "{error}");
}

proptest! {
    #[test]
    fn what_is_written_is_what_is_mapped_and_read(
        rows in 0usize..40,
        width in 0usize..6,
        seed in any::<u64>(),
        chunk in 1usize..50,
    ) {
        let folder = Folder::new();
        let path = folder.0.path().join("array.npy");
        let values: Vec<u64> = (0..rows * width)
            .map(|index| crate::rng::mix64(seed ^ index as u64))
            .collect();
        let mut writer = ArrayWriter::create(&path, &[rows, width]).unwrap();
        for part in values.chunks(chunk) {
            writer.write(part).unwrap();
        }
        let record = writer.finish().unwrap();
        prop_assert_eq!(record.bytes, std::fs::metadata(&path).unwrap().len());
        let array = MappedArray::<u64>::open_shaped(&path, &[rows, width]).unwrap();
        prop_assert_eq!(&array[..], &values[..]);
        let mut reader = ArrayReader::open(&path).unwrap();
        prop_assert_eq!(reader.read_all::<u64>().unwrap(), values);
        prop_assert_eq!(reader.remaining(), 0);
    }

    #[test]
    fn a_header_reads_back_as_it_was_written(shape in prop::collection::vec(0usize..1_000_000, 0..5)) {
        let header = Header::new(Dtype::F32, &shape);
        let bytes = header.encode();
        prop_assert_eq!(bytes.len() % 64, 0);
        prop_assert_eq!(Header::read(&mut &bytes[..], Path::new("header")).unwrap(), header);
    }

    #[test]
    fn no_header_text_makes_the_reader_panic(text in "\\PC{0,80}", version in 0u8..5) {
        let bytes = file(version, &text, &[0; 16]);
        // Refusing is as good as reading; only a panic would fail here.
        let _ = Header::read(&mut &bytes[..], Path::new("fuzz")).map(|header| header.file_length());
    }
}
