//! MessagePack payloads for control messages.

use ractor::BytesConvertable;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Carries any serde value in a control message, as MessagePack with field names.
///
/// The trait that ractor asks for cannot fail, so a payload that does not decode panics; ractor_cluster catches that,
/// drops the message and keeps the actor. Peers of another version are refused when they join, before it can happen.
#[derive(Clone, Debug, PartialEq)]
pub struct Rmp<T>(pub T);

impl<T: Serialize + DeserializeOwned + Send + 'static> BytesConvertable for Rmp<T> {
    fn into_bytes(self) -> Vec<u8> {
        match rmp_serde::to_vec_named(&self.0) {
            Ok(bytes) => bytes,
            Err(error) => panic!("a control message cannot be written as MessagePack: {error}"),
        }
    }

    fn from_bytes(bytes: Vec<u8>) -> Self {
        match rmp_serde::from_slice(&bytes) {
            Ok(value) => Self(value),
            Err(error) => panic!("a control message is not what its type says: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_survives_the_wire() {
        let value = (7u64, "four".to_owned(), vec![Some(1.5f64), None]);
        assert_eq!(
            Rmp::<(u64, String, Vec<Option<f64>>)>::from_bytes(Rmp(value.clone()).into_bytes()).0,
            value
        );
    }
}
