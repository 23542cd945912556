use proptest::prelude::*;

use super::*;

fn encoded(row_type: RowType, row: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0xAB; row_type.row_bytes(row.len())];
    row_type.encode(row, &mut bytes);
    bytes
}

fn decoded(row_type: RowType, bytes: &[u8], width: usize) -> Vec<f32> {
    let mut row = vec![9.0; width];
    row_type.decode(bytes, &mut row);
    row
}

fn round_trip(row_type: RowType, row: &[f32]) -> Vec<f32> {
    decoded(row_type, &encoded(row_type, row), row.len())
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

/// The most by which a finite value of `row` may change.
fn bound(row_type: RowType, row: &[f32], value: f32) -> f64 {
    let size = f64::from(value.abs());
    match row_type {
        RowType::F32 => 0.0,
        RowType::F16 => (size / 2048.0).max(2f64.powi(-25)),
        RowType::Bf16 => (size / 256.0).max(2f64.powi(-134)),
        RowType::Int8 => {
            let largest = row
                .iter()
                .fold(0.0f64, |largest, value| largest.max(f64::from(value.abs())));
            let scale = largest / 127.0 * (1.0 + 2f64.powi(-16));
            // Half a step, the rounding of the quotient, and what is flushed.
            scale * 0.50001 + 1.5e-36
        }
    }
}

/// Rows of finite values of many sizes, that f16 can hold.
fn rows() -> impl Strategy<Value = Vec<f32>> {
    let value = prop_oneof![
        4 => -4.0f32..4.0,
        1 => -65_000.0f32..65_000.0,
        1 => -1e-6f32..1e-6,
        1 => Just(0.0),
    ];
    prop::collection::vec(value, 0..150)
}

/// Any finite value, the largest and the subnormal ones among them.
fn any_finite_rows() -> impl Strategy<Value = Vec<f32>> {
    let value = any::<u32>()
        .prop_map(f32::from_bits)
        .prop_filter("finite", |value| value.is_finite());
    prop::collection::vec(value, 0..20)
}

proptest! {
    #[test]
    fn f32_rows_come_back_bit_for_bit(row in prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..40)) {
        prop_assert_eq!(bits(&round_trip(RowType::F32, &row)), bits(&row));
        let bytes = encoded(RowType::F32, &row);
        if let Some(values) = RowType::F32.values(&bytes) {
            prop_assert_eq!(bits(values), bits(&row));
        }
    }

    #[test]
    fn values_change_by_no_more_than_is_stated(row in rows()) {
        for row_type in RowType::ALL {
            for (value, back) in row.iter().zip(round_trip(row_type, &row)) {
                let change = (f64::from(*value) - f64::from(back)).abs();
                prop_assert!(change <= bound(row_type, &row, *value), "{}: {} became {}", row_type, value, back);
            }
        }
    }

    #[test]
    fn int8_and_bf16_take_any_finite_row(row in any_finite_rows()) {
        for (value, back) in row.iter().zip(round_trip(RowType::Int8, &row)) {
            let largest = row.iter().fold(0.0f64, |largest, value| largest.max(f64::from(value.abs())));
            let change = (f64::from(*value) - f64::from(back)).abs();
            // Near the largest f32 the scale is rounded down instead of up, and the largest value loses a little more.
            let bound = bound(RowType::Int8, &row, *value) + largest * 2f64.powi(-16);
            prop_assert!(change <= bound, "{} became {} in a row up to {}", value, back, largest);
        }
        for (value, back) in row.iter().zip(round_trip(RowType::Bf16, &row)) {
            // The values that are nearer to infinity than to the largest bfloat16.
            let overflows = value.abs() >= f32::from_bits(0x7F7F_8000);
            prop_assert_eq!(back.is_infinite(), overflows, "{} became {}", value, back);
        }
    }

    #[test]
    fn encoding_a_decoded_row_gives_the_same_bytes(row in rows(), other in any_finite_rows()) {
        for row in [row, other] {
            for row_type in RowType::ALL {
                let bytes = encoded(row_type, &row);
                let once = decoded(row_type, &bytes, row.len());
                if row_type == RowType::Int8 && once.iter().all(|value| *value == 0.0) {
                    // The sign of a zero is not kept.
                    prop_assert!(round_trip(row_type, &once).iter().all(|value| *value == 0.0));
                    continue;
                }
                prop_assert_eq!(encoded(row_type, &once), bytes, "{}", row_type);
            }
        }
    }

    #[test]
    fn a_larger_value_never_comes_back_smaller(row in rows()) {
        let mut row = row;
        row.sort_by(f32::total_cmp);
        for row_type in RowType::ALL {
            let back = round_trip(row_type, &row);
            prop_assert!(back.is_sorted(), "{}: {:?} became {:?}", row_type, row, back);
        }
    }

    #[test]
    fn bytes_decode_the_same_wherever_they_lie(row in rows(), shift in 0usize..4) {
        for row_type in RowType::ALL {
            let bytes = encoded(row_type, &row);
            let mut shifted = vec![0; shift];
            shifted.extend(&bytes);
            // f32 rows are copied, whatever their alignment.
            let found = decoded(row_type, &shifted[shift..], row.len());
            prop_assert_eq!(bits(&found), bits(&decoded(row_type, &bytes, row.len())));
        }
    }
}

#[test]
fn rows_of_zeros_stay_zeros() {
    for row_type in RowType::ALL {
        assert_eq!(round_trip(row_type, &[0.0; 70]), [0.0; 70], "{row_type}");
    }
    // So small that the scale would be subnormal.
    assert_eq!(round_trip(RowType::Int8, &[1e-40, -1e-37]), [0.0, 0.0]);
}

#[test]
fn ties_go_to_even() {
    // The largest value makes the scale 1.
    let row = [127.0, 0.5, 1.5, -0.5, -2.5];
    assert_eq!(round_trip(RowType::Int8, &row), [127.0, 0.0, 2.0, 0.0, -2.0]);
    assert_eq!(round_trip(RowType::F16, &[2049.0, 2051.0]), [2048.0, 2052.0]);
    assert_eq!(round_trip(RowType::Bf16, &[257.0, 259.0]), [256.0, 260.0]);
}

#[test]
fn the_ends_of_the_range_are_reached_and_not_passed() {
    let back = round_trip(RowType::Int8, &[3.0, -3.0]);
    assert!(
        (back[0] - 3.0).abs() <= 3.0 / 131_072.0 && back[1] == -back[0],
        "{back:?}"
    );
    assert!(encoded(RowType::Int8, &[f32::MAX, -f32::MAX])[4..] == [127, 129]);
    assert!(round_trip(RowType::Int8, &[f32::MAX])[0].is_finite());
    assert_eq!(
        round_trip(RowType::F16, &[65_504.0, 65_519.0, 65_520.0]),
        [65_504.0, 65_504.0, f32::INFINITY]
    );
}

#[test]
fn what_is_not_finite_stays_visible() {
    for row_type in [RowType::F16, RowType::Bf16] {
        let back = round_trip(row_type, &[1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY]);
        assert_eq!(back[0], 1.0, "{row_type}");
        assert!(back[1].is_nan(), "{row_type}");
        assert_eq!(back[2..], [f32::INFINITY, f32::NEG_INFINITY], "{row_type}");
    }
    for strange in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let back = round_trip(RowType::Int8, &[1.0, strange]);
        assert!(back.iter().all(|value| value.is_nan()), "{strange} in {back:?}");
    }
}

#[test]
fn the_layout_is_the_documented_one() {
    assert_eq!(encoded(RowType::F32, &[1.0]), [0, 0, 0x80, 0x3F]);
    assert_eq!(encoded(RowType::F16, &[1.0, -2.0]), [0, 0x3C, 0, 0xC0]);
    assert_eq!(encoded(RowType::Bf16, &[1.0, -2.0]), [0x80, 0x3F, 0, 0xC0]);
    assert_eq!(encoded(RowType::Int8, &[127.0, -1.0]), [0, 0, 0x80, 0x3F, 127, 0xFF]);
    let bytes = RowType::ALL.map(|row_type| row_type.row_bytes(100));
    assert_eq!(bytes, [400, 200, 200, 104]);
}

#[test]
fn names_are_read_back() {
    for row_type in RowType::ALL {
        assert_eq!(row_type.to_string().parse(), Ok(row_type));
        assert_eq!(serde_json::to_string(&row_type).unwrap(), format!("\"{row_type}\""));
    }
    let error = "fp8".parse::<RowType>().unwrap_err().to_string();
    assert_eq!(error, "there is no row type \"fp8\", write f32, f16, bf16 or int8");
}
