//! Parameters outside a run: their hash, and safetensors files that PyTorch and DGL read.

use std::collections::HashMap;
use std::io::Write;
use std::path::Path;

use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView, serialize};
use sha2::{Digest, Sha256};

use super::{LayerError, NamedParameter};

/// SHA-256, in lower-case hex, of the little-endian f32 values of all parameters in name order.
pub fn weights_sha256(parameters: &[NamedParameter]) -> String {
    let mut ordered: Vec<&NamedParameter> = parameters.iter().collect();
    ordered.sort_by(|left, right| left.name.cmp(&right.name));
    let mut hash = Sha256::new();
    for parameter in ordered {
        hash.update(little_endian(&parameter.values));
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The parameters as a safetensors file, as they are named and shaped: `[outputs, inputs]` as PyTorch's `Linear`, named
/// as a DGL `SAGEConv` names them, so that `load_state_dict` takes the file as it is.
pub fn to_safetensors(parameters: &[NamedParameter], metadata: &[(String, String)]) -> Result<Vec<u8>, LayerError> {
    let failed = |reason: String| LayerError::Backend(format!("the parameters cannot be written down: {reason}"));
    let bytes: Vec<Vec<u8>> = parameters
        .iter()
        .map(|parameter| little_endian(&parameter.values))
        .collect();
    let mut views = Vec::with_capacity(parameters.len());
    for (parameter, bytes) in parameters.iter().zip(&bytes) {
        let view = TensorView::new(Dtype::F32, parameter.shape.clone(), bytes)
            .map_err(|error| failed(format!("{}: {error}", parameter.name)))?;
        views.push((parameter.name.as_str(), view));
    }
    let metadata: HashMap<String, String> = metadata.iter().cloned().collect();
    serialize(views, (!metadata.is_empty()).then_some(metadata)).map_err(|error| failed(error.to_string()))
}

/// Writes [`to_safetensors`] to a file, which appears under its name only when it is whole and on the disk.
pub fn save_safetensors(
    path: &Path,
    parameters: &[NamedParameter],
    metadata: &[(String, String)],
) -> Result<(), LayerError> {
    let failed = |reason: String| file_error("cannot write", path, reason);
    let whole = to_safetensors(parameters, metadata).map_err(|error| failed(error.to_string()))?;

    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    };
    let io_failed = |error: std::io::Error| failed(error.to_string());
    let mut file = tempfile::NamedTempFile::new_in(folder).map_err(io_failed)?;
    file.write_all(&whole).map_err(io_failed)?;
    file.as_file().sync_all().map_err(io_failed)?;
    file.persist(path).map_err(|error| io_failed(error.error))?;
    // The rename is safe only when the folder is on the disk too.
    std::fs::File::open(folder)
        .and_then(|folder| folder.sync_all())
        .map_err(io_failed)
}

/// What a safetensors file holds.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedWeights {
    /// In name order.
    pub parameters: Vec<NamedParameter>,
    /// Key and value, by key.
    pub metadata: Vec<(String, String)>,
}

/// Reads a file of [`save_safetensors`], or any with f32 tensors alone.
pub fn load_safetensors(path: &Path) -> Result<SavedWeights, LayerError> {
    let failed = |reason: String| file_error("cannot read", path, reason);
    let whole = std::fs::read(path).map_err(|error| failed(error.to_string()))?;
    let (_, header) = SafeTensors::read_metadata(&whole).map_err(|error| failed(error.to_string()))?;
    let tensors = SafeTensors::deserialize(&whole).map_err(|error| failed(error.to_string()))?;
    let mut parameters = Vec::with_capacity(tensors.len());
    for (name, tensor) in tensors.tensors() {
        if tensor.dtype() != Dtype::F32 {
            return Err(failed(format!("{name} holds {:?}, only F32 is read", tensor.dtype())));
        }
        let (values, _) = tensor.data().as_chunks::<4>();
        parameters.push(NamedParameter {
            name,
            shape: tensor.shape().to_vec(),
            values: values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        });
    }
    parameters.sort_by(|left, right| left.name.cmp(&right.name));
    let mut metadata: Vec<(String, String)> = header.metadata().clone().unwrap_or_default().into_iter().collect();
    metadata.sort();
    Ok(SavedWeights { parameters, metadata })
}

fn little_endian(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn file_error(action: &'static str, path: &Path, reason: String) -> LayerError {
    LayerError::File {
        action,
        path: path.to_path_buf(),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parameters() -> Vec<NamedParameter> {
        let parameter = |name: &str, shape: &[usize], values: &[f32]| NamedParameter {
            name: name.into(),
            shape: shape.into(),
            values: values.into(),
        };
        vec![
            parameter("layers.0.fc_neigh.weight", &[2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]),
            parameter("layers.0.fc_self.bias", &[2], &[-0.0, f32::MIN_POSITIVE]),
        ]
    }

    #[test]
    fn the_hash_is_that_of_the_values_in_name_order() {
        let mut given = parameters();
        let hash = weights_sha256(&given);
        given.reverse();
        assert_eq!(weights_sha256(&given), hash);
        given[0].values[0] = 0.0;
        assert_ne!(weights_sha256(&given), hash, "the sign of zero counts");
        // printf '\0\0\200\77' | sha256sum
        let one = NamedParameter {
            name: "x".into(),
            shape: vec![1],
            values: vec![1.0],
        };
        assert_eq!(
            weights_sha256(&[one]),
            "e00e5eb9444182f352323374ef4e08ebcb784725fdd4fd612d7730540b3e0c8c"
        );
    }

    #[test]
    fn files_come_back_as_they_were_saved() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        let metadata = [("epoch".to_string(), "3".to_string()), ("seed".into(), "1".into())];
        save_safetensors(&path, &parameters(), &metadata).unwrap();
        save_safetensors(&path, &parameters(), &metadata).unwrap();
        let SavedWeights {
            parameters: found,
            metadata: notes,
        } = load_safetensors(&path).unwrap();
        assert_eq!(found, parameters());
        assert_eq!(weights_sha256(&found), weights_sha256(&parameters()));
        assert_eq!(notes, metadata);
        assert_eq!(
            std::fs::read_dir(folder.path()).unwrap().count(),
            1,
            "no temporary file stays"
        );
    }

    #[test]
    fn the_layout_is_what_pytorch_expects() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.safetensors");
        save_safetensors(&path, &parameters(), &[]).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
        let weight = &header["layers.0.fc_neigh.weight"];
        assert_eq!(weight["dtype"], "F32");
        assert_eq!(weight["shape"], serde_json::json!([2, 3]));
        let start = 8 + header_len + weight["data_offsets"][0].as_u64().unwrap() as usize;
        let second = f32::from_le_bytes(bytes[start + 4..start + 8].try_into().unwrap());
        assert_eq!(
            second, 2.0,
            "row-major: the second value is the first output's second input"
        );
    }

    #[test]
    fn bad_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("broken.safetensors");
        std::fs::write(&path, b"not a model").unwrap();
        let error = load_safetensors(&path).unwrap_err().to_string();
        assert!(
            error.contains("cannot read") && error.contains("broken.safetensors"),
            "{error}"
        );
        let mut wrong = parameters();
        wrong[0].shape = vec![7];
        let error = save_safetensors(&path, &wrong, &[]).unwrap_err().to_string();
        assert!(error.contains("layers.0.fc_neigh.weight"), "{error}");
        let missing = folder.path().join("missing/model.safetensors");
        assert!(
            save_safetensors(&missing, &parameters(), &[])
                .unwrap_err()
                .to_string()
                .contains("missing")
        );
    }
}
