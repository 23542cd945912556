use proptest::prelude::*;

use super::*;

fn caller() -> impl Strategy<Value = Caller> {
    (any::<u16>(), any::<u32>(), 0..3usize).prop_map(|(rank, epoch, phase)| Caller {
        rank,
        period: Period {
            epoch,
            phase: PHASES[phase],
        },
    })
}

fn query() -> impl Strategy<Value = NeighborQuery> {
    (any::<u64>(), any::<u32>(), prop::collection::vec(any::<u32>(), 0..9))
        .prop_map(|(key, fanout, rows)| NeighborQuery { key, fanout, rows })
}

proptest! {
    #[test]
    fn requests_survive_the_wire(
        caller in caller(),
        owner in any::<u16>(),
        rows in prop::collection::vec(any::<u32>(), 0..40),
        queries in prop::collection::vec(query(), 0..5),
    ) {
        let mut body = Vec::new();
        RowsRequest::put(&mut body, caller, owner, &rows);
        prop_assert_eq!(RowsRequest::parse(&body), Ok(RowsRequest { caller, owner, rows }));
        body.push(0);
        prop_assert!(RowsRequest::parse(&body).is_err());

        body.clear();
        SampleRequest::put(&mut body, caller, owner, &queries);
        prop_assert_eq!(SampleRequest::parse(&body), Ok(SampleRequest { caller, owner, queries }));
    }

    #[test]
    fn parcels_and_headers_survive_the_wire(
        caller in caller(), to in any::<u16>(), epoch in any::<u32>(), step in any::<u32>(), kind in 0..5usize,
        request in any::<u64>(), number in any::<u32>(), body in prop::collection::vec(any::<u8>(), 0..50), checksums in any::<bool>(),
    ) {
        let tag = ParcelTag { epoch, step, kind: PARCEL_KINDS[kind] };
        let head = ParcelHead { from: caller.rank, to, tag, period: caller.period };
        let mut bytes = Vec::new();
        head.put(&mut bytes);
        let bytes: [u8; ParcelHead::BYTES] = bytes.try_into().unwrap();
        prop_assert_eq!(ParcelHead::parse(&bytes), Ok(head));

        let header = FrameHeader::of(FrameKind::Rows, request, number, &body, checksums);
        prop_assert_eq!(FrameHeader::decode(&header.encode()), Ok(header));
        prop_assert!(header.verify(checksums, || crc32c::crc32c(&body)).is_ok());
    }

    #[test]
    fn any_bytes_are_refused_or_parsed_but_never_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
        let _ = RowsRequest::parse(&bytes);
        let parsed = SampleRequest::parse(&bytes);
        if let Ok(request) = parsed {
            let words: usize = request.queries.iter().map(|query| query.rows.len()).sum();
            prop_assert!(words * 4 <= bytes.len());
        }
        if let Some(header) = bytes.first_chunk() {
            let _ = FrameHeader::decode(header);
        }
        if let Some(head) = bytes.first_chunk() {
            let _ = ParcelHead::parse(head);
        }
    }
}

#[test]
fn a_damaged_body_is_noticed_and_a_missing_checksum_too() {
    let body = [1, 2, 3, 4];
    let header = FrameHeader::of(FrameKind::Rows, 1, 1, &body, true);
    let damaged = header.verify(true, || crc32c::crc32c(&[1, 2, 3, 5]));
    assert!(matches!(damaged, Err(ProtocolError::Checksum { .. })));
    let plain = FrameHeader::of(FrameKind::Rows, 1, 1, &body, false);
    assert_eq!(plain.verify(true, || 0), Err(ProtocolError::ChecksumMissing));
}

#[test]
fn sample_words_must_fit_the_question() {
    let query = |rows: usize| NeighborQuery {
        key: 1,
        fanout: 2,
        rows: vec![0; rows],
    };
    let queries = [query(2), query(0), query(1)];
    let replies = [
        NeighborReply {
            counts: vec![2, 0],
            neighbors: vec![7, 8],
        },
        NeighborReply::default(),
        NeighborReply {
            counts: vec![1],
            neighbors: vec![9],
        },
    ];
    let words = sample_words(&replies).collect::<Vec<_>>().concat();
    assert_eq!(replies_from_words(&queries, &words).as_deref(), Ok(&replies[..]));
    assert!(replies_from_words(&queries, &words[..words.len() - 1]).is_err());
    assert!(replies_from_words(&queries, &[&words[..], &[1]].concat()).is_err());
    let too_many = [3, 0, 7, 8, 9, 1, 9];
    assert!(replies_from_words(&queries, &too_many).is_err());
}
