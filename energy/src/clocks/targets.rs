//! Which GPUs a machine lowers.
//!
//! NVML numbers the GPUs of the computer in the order of their buses, CUDA those that a process may see in an order of
//! its own, which `CUDA_VISIBLE_DEVICES` and `CUDA_DEVICE_ORDER` change. So numbers are never matched: the CUDA driver
//! tells the UUID of the device that it gave, and NVML finds the GPU by it.

use crate::nvml::{GpuError, GpuInfo, GpuReader};

/// A device as CUDA knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CudaGpu {
    /// What it is called, such as `cuda:0`.
    pub device: String,
    /// `GPU-` and 32 hexadecimal digits, of a split GPU those of the instance; none where the driver did not tell.
    pub uuid: Option<String>,
}

/// What was asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClockTargets {
    /// The GPUs of these devices, on which the machine trains.
    Devices(Vec<CudaGpu>),
    /// Those of these GPUs, by UUID, that the computer has: a cluster is told once of the GPUs of all its machines.
    Named(Vec<String>),
}

/// Why no GPU's clocks are lowered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    #[error("this machine trains on no GPU; name those to lower by their UUID (nvidia-smi -L)")]
    NoGpu,
    #[error("of {named} no GPU is on this computer; it has {found}")]
    NotHere { named: String, found: String },
    #[error(
        "the CUDA driver does not tell the UUID of {device}, by which NVML would find it; name the GPU by its UUID"
    )]
    NoUuid { device: String },
    #[error(
        "NVML knows no GPU {uuid}, which is {device} for CUDA, but {found}; if it is an instance of a split GPU (MIG), its \
         clocks are those of the whole board and are left alone"
    )]
    Unmatched {
        device: String,
        uuid: String,
        found: String,
    },
    #[error("GPU {uuid} is split (MIG): its clocks are those of all instances, and are left alone")]
    Split { uuid: String },
    #[error("no GPU can be seen: {0}")]
    Unseen(#[from] GpuError),
}

impl ClockTargets {
    /// Loads the driver, unless there is nothing to look for, and gives the UUIDs of the GPUs as NVML has them, each once.
    ///
    /// # Errors
    /// There is none, or one of them cannot be lowered: then none is.
    pub fn find<R: GpuReader>(
        &self,
        load: impl FnOnce() -> Result<R, GpuError>,
    ) -> Result<(R, Vec<String>), TargetError> {
        if matches!(self, Self::Devices(devices) if devices.is_empty()) {
            return Err(TargetError::NoGpu);
        }
        let mut reader = load()?;
        let gpus = reader.gpus()?;
        let found = || match gpus.iter().map(|gpu| gpu.uuid.as_str()).collect::<Vec<_>>() {
            none if none.is_empty() => "none".to_owned(),
            some => some.join(", "),
        };
        let of_uuid = |uuid: &str| gpus.iter().find(|gpu| gpu.uuid.eq_ignore_ascii_case(uuid));
        let mut targets: Vec<&GpuInfo> = Vec::new();
        match self {
            Self::Devices(devices) => {
                for CudaGpu { device, uuid } in devices {
                    let device = device.clone();
                    let Some(uuid) = uuid else {
                        return Err(TargetError::NoUuid { device });
                    };
                    let Some(gpu) = of_uuid(uuid) else {
                        let (uuid, found) = (uuid.clone(), found());
                        return Err(TargetError::Unmatched { device, uuid, found });
                    };
                    targets.push(gpu);
                }
            }
            Self::Named(named) => targets.extend(named.iter().filter_map(|uuid| of_uuid(uuid))),
        }
        if let Self::Named(named) = self
            && targets.is_empty()
        {
            let (named, found) = (named.join(", "), found());
            return Err(TargetError::NotHere { named, found });
        }
        if let Some(split) = targets.iter().find(|gpu| gpu.split) {
            let uuid = split.uuid.clone();
            return Err(TargetError::Split { uuid });
        }
        let mut uuids: Vec<String> = Vec::new();
        for gpu in targets {
            if !uuids.contains(&gpu.uuid) {
                uuids.push(gpu.uuid.clone());
            }
        }
        Ok((reader, uuids))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nvml::fake::FakeNvml;

    fn device(number: u32, uuid: &str) -> CudaGpu {
        CudaGpu {
            device: format!("cuda:{number}"),
            uuid: Some(uuid.to_owned()),
        }
    }

    fn three_gpus() -> FakeNvml {
        let fake = FakeNvml::new();
        (fake.set_driver)(3, 0);
        fake
    }

    #[test]
    fn cuda_devices_are_matched_by_uuid_and_not_by_number() {
        let fake = three_gpus();
        // CUDA_VISIBLE_DEVICES=2,0, of which two ranks share the first.
        let devices = vec![
            device(0, "GPU-fake-2"),
            device(1, "GPU-fake-0"),
            device(0, "GPU-FAKE-2"),
        ];
        let (_, found) = ClockTargets::Devices(devices).find(|| Ok(fake.reader())).unwrap();
        assert_eq!(found, ["GPU-fake-2", "GPU-fake-0"]);
    }

    #[test]
    fn a_device_that_is_no_whole_gpu_is_refused_with_the_reason() {
        let fake = three_gpus();
        let refused = |devices| ClockTargets::Devices(devices).find(|| Ok(fake.reader())).unwrap_err();
        assert_eq!(refused(Vec::new()), TargetError::NoGpu);
        let untold = CudaGpu {
            device: "cuda:1".to_owned(),
            uuid: None,
        };
        let error = refused(vec![device(0, "GPU-fake-0"), untold]).to_string();
        assert!(error.contains("does not tell the UUID of cuda:1"), "{error}");
        let error = refused(vec![device(0, "MIG-fake-0-1")]).to_string();
        assert!(
            error.contains("MIG-fake-0-1") && error.contains("GPU-fake-0, GPU-fake-1, GPU-fake-2"),
            "{error}"
        );
        (fake.set_gpu)(1, 0, 0, 0, 0, 1);
        assert_eq!(
            refused(vec![device(0, "GPU-fake-0"), device(1, "GPU-fake-1")]),
            TargetError::Split {
                uuid: "GPU-fake-1".to_owned()
            }
        );
    }

    #[test]
    fn of_named_gpus_those_are_taken_that_the_computer_has() {
        let fake = three_gpus();
        let find = |named: &[&str]| {
            let named = named.iter().map(|uuid| (*uuid).to_owned()).collect();
            let found = ClockTargets::Named(named).find(|| Ok(fake.reader()));
            found.map(|(_, uuids)| uuids)
        };
        assert_eq!(
            find(&["GPU-elsewhere", "GPU-fake-1", "GPU-fake-1"]).unwrap(),
            ["GPU-fake-1"]
        );
        let error = find(&["GPU-elsewhere"]).unwrap_err().to_string();
        assert!(error.contains("of GPU-elsewhere no GPU is on this computer"), "{error}");
        (fake.set_gpu)(1, 0, 0, 0, 0, 1);
        assert!(matches!(find(&["GPU-fake-1"]), Err(TargetError::Split { .. })));
        (fake.set_driver)(0, 0);
        assert!(find(&["GPU-fake-1"]).unwrap_err().to_string().ends_with("it has none"));
    }
}
