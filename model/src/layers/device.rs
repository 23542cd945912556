//! Where a model runs, found out before the first tensor: Burn's CUDA back end panics when there is no GPU.

use std::fmt;
use std::str::FromStr;

use super::LayerError;

/// What a person asked for: `auto`, `cpu`, `cuda` or `cuda:N`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// A GPU if the program and the machine have one, else the CPU.
    #[default]
    Auto,
    Cpu,
    /// The GPU with this number, or one per rank of the machine in turn.
    Cuda(Option<usize>),
}

impl FromStr for DeviceChoice {
    type Err = LayerError;

    fn from_str(text: &str) -> Result<Self, LayerError> {
        let choice = match text {
            "auto" => Some(Self::Auto),
            "cpu" => Some(Self::Cpu),
            "cuda" => Some(Self::Cuda(None)),
            _ => text
                .strip_prefix("cuda:")
                .and_then(|index| index.parse().ok())
                .map(|index| Self::Cuda(Some(index))),
        };
        choice.ok_or_else(|| LayerError::Config {
            what: "the device",
            wanted: "auto, cpu, cuda or cuda:N",
            found: format!("`{text}`"),
        })
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => out.write_str("auto"),
            Self::Cpu => out.write_str("cpu"),
            Self::Cuda(None) => out.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(out, "cuda:{index}"),
        }
    }
}

/// A device that was there when it was asked for. Displays as `cpu` or `cuda:N`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    cuda_index: Option<usize>,
    reason: String,
}

impl Device {
    /// Finds the device for a rank. `local_rank` is its number among the ranks of this machine: `cuda` without a number
    /// and `auto` deal the GPUs out in turn.
    pub fn probe(choice: DeviceChoice, local_rank: u32) -> Result<Self, LayerError> {
        Self::choose(choice, local_rank, cuda_device_count)
    }

    /// The CPU, which is always there.
    pub fn cpu() -> Self {
        Self::on_cpu("asked for".into())
    }

    /// Why it is this device, in a few words.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// The number of the GPU, or `None` on the CPU.
    pub fn cuda_index(&self) -> Option<usize> {
        self.cuda_index
    }

    /// The UUID of the GPU, `GPU-` and 32 hexadecimal digits in groups, by which other libraries know it: numbers are those
    /// that CUDA gives to the devices that this process may see. Of an instance of a split GPU (MIG) it is the instance's,
    /// where the driver tells that. `None` on the CPU, and when the driver does not tell.
    pub fn cuda_uuid(&self) -> Option<String> {
        cuda_device_uuid(self.cuda_index?)
    }

    /// The decision, apart from the question to the driver.
    fn choose(
        choice: DeviceChoice,
        local_rank: u32,
        count: impl FnOnce() -> Result<usize, String>,
    ) -> Result<Self, LayerError> {
        let unusable = |reason: String| LayerError::Device {
            device: choice.to_string(),
            reason,
        };
        let dealt = |count: usize| local_rank as usize % count;
        match choice {
            DeviceChoice::Cpu => Ok(Self::cpu()),
            DeviceChoice::Auto => Ok(match count() {
                Ok(0) => Self::on_cpu("the CUDA driver finds no GPU".into()),
                Ok(count) => Self::on_cuda(dealt(count), count),
                Err(reason) => Self::on_cpu(reason),
            }),
            DeviceChoice::Cuda(wanted) => match (count().map_err(unusable)?, wanted) {
                (0, _) => Err(unusable("the CUDA driver finds no GPU".into())),
                (count, Some(index)) if index >= count => {
                    Err(unusable(format!("there are {count} GPUs, numbered from 0")))
                }
                (count, wanted) => Ok(Self::on_cuda(wanted.unwrap_or_else(|| dealt(count)), count)),
            },
        }
    }

    fn on_cpu(reason: String) -> Self {
        Self {
            cuda_index: None,
            reason,
        }
    }

    fn on_cuda(index: usize, count: usize) -> Self {
        Self {
            cuda_index: Some(index),
            reason: format!("{count} GPUs found"),
        }
    }

    #[cfg(all(feature = "train", not(feature = "cuda")))]
    pub(super) fn unusable(&self, reason: &str) -> LayerError {
        LayerError::Device {
            device: self.to_string(),
            reason: reason.into(),
        }
    }
}

impl fmt::Display for Device {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.cuda_index {
            None => out.write_str("cpu"),
            Some(index) => write!(out, "cuda:{index}"),
        }
    }
}

/// The number of GPUs, or why none can be used.
#[cfg(not(feature = "cuda"))]
fn cuda_device_count() -> Result<usize, String> {
    Err("this program was built without the feature `cuda`".into())
}

#[cfg(not(feature = "cuda"))]
fn cuda_device_uuid(_index: usize) -> Option<String> {
    None
}

/// The UUID of the device with this number.
#[cfg(feature = "cuda")]
fn cuda_device_uuid(index: usize) -> Option<String> {
    use std::ffi::c_int;

    use libloading::{Library, Symbol};

    type GetUuid = unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int;
    let index = c_int::try_from(index).ok()?;
    let (mut device, mut uuid): (c_int, [u8; 16]) = (0, [0; 16]);
    // SAFETY: the driver is loaded already, since the device was found by it. The functions have these C signatures in every
    // driver that has them, `CUuuid` is 16 bytes, and both places outlive the calls.
    unsafe {
        let driver = Library::new("libcuda.so.1")
            .or_else(|_| Library::new("libcuda.so"))
            .ok()?;
        let init: Symbol<unsafe extern "C" fn(u32) -> c_int> = driver.get(b"cuInit\0").ok()?;
        let get: Symbol<unsafe extern "C" fn(*mut c_int, c_int) -> c_int> = driver.get(b"cuDeviceGet\0").ok()?;
        // The second version, of CUDA 11.4, tells instances of a split GPU apart.
        let second: Result<Symbol<GetUuid>, _> = driver.get(b"cuDeviceGetUuid_v2\0");
        let get_uuid = second.or_else(|_| driver.get(b"cuDeviceGetUuid\0")).ok()?;
        if init(0) != 0 || get(&raw mut device, index) != 0 || get_uuid(&raw mut uuid, device) != 0 {
            return None;
        }
    }
    Some(uuid_text(&uuid))
}

/// 16 bytes as NVML writes them.
#[cfg(any(feature = "cuda", test))]
fn uuid_text(uuid: &[u8; 16]) -> String {
    let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    let groups = [&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]];
    format!("GPU-{}", groups.join("-"))
}

/// The number of GPUs, or why none can be used. Loads the driver itself, since Burn would panic without one, and looks
/// for NVRTC, which compiles the kernels when they first run.
#[cfg(feature = "cuda")]
fn cuda_device_count() -> Result<usize, String> {
    use std::ffi::c_int;

    use libloading::{Library, Symbol};

    let open = |names: &[&str]| {
        // SAFETY: loading a vendor's library runs its initialisers; these are made to be loaded at run time.
        names.iter().find_map(|name| unsafe { Library::new(*name) }.ok())
    };
    let driver = open(&["libcuda.so.1", "libcuda.so"])
        .ok_or("no CUDA driver: libcuda.so.1 is not installed; install the NVIDIA driver or use `cpu`")?;
    let nvrtc = ["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so.11.2"];
    open(&nvrtc).ok_or("no CUDA compiler: libnvrtc.so is not installed; install the CUDA toolkit or use `cpu`")?;

    let mut count: c_int = 0;
    // SAFETY: both functions exist in every CUDA driver with these C signatures, and `count` outlives the call.
    let status = unsafe {
        let init: Symbol<unsafe extern "C" fn(u32) -> c_int> = driver
            .get(b"cuInit\0")
            .map_err(|error| format!("libcuda.so.1 has no cuInit: {error}"))?;
        let device_count: Symbol<unsafe extern "C" fn(*mut c_int) -> c_int> = driver
            .get(b"cuDeviceGetCount\0")
            .map_err(|error| format!("libcuda.so.1 has no cuDeviceGetCount: {error}"))?;
        match init(0) {
            0 => device_count(&mut count),
            failed => failed,
        }
    };
    match status {
        0 => Ok(usize::try_from(count).unwrap_or(0)),
        // CUDA_ERROR_NO_DEVICE
        100 => Ok(0),
        failed => Err(format!(
            "the CUDA driver does not start (error {failed}); see `nvidia-smi`"
        )),
    }
}

/// What decides the bits of training on this CPU: architecture, vector instructions, and the cache sizes from which
/// matrix products choose their blocks.
///
/// Two machines with one fingerprint train to the same bits.
pub fn cpu_fingerprint() -> String {
    let mut parts = vec![std::env::consts::ARCH.to_string(), vector_instructions().join("+")];
    parts.extend(cache_sizes(std::path::Path::new("/sys/devices/system/cpu/cpu0/cache")));
    parts.retain(|part| !part.is_empty());
    parts.join(" ")
}

#[cfg(target_arch = "x86_64")]
fn vector_instructions() -> Vec<&'static str> {
    [
        ("sse4.2", std::arch::is_x86_feature_detected!("sse4.2")),
        ("avx2", std::arch::is_x86_feature_detected!("avx2")),
        ("fma", std::arch::is_x86_feature_detected!("fma")),
        ("avx512f", std::arch::is_x86_feature_detected!("avx512f")),
    ]
    .into_iter()
    .filter_map(|(name, there)| there.then_some(name))
    .collect()
}

#[cfg(not(target_arch = "x86_64"))]
fn vector_instructions() -> Vec<&'static str> {
    Vec::new()
}

/// `L1=48K/12` and so on: size and associativity of the data caches, as Linux lists them.
fn cache_sizes(folder: &std::path::Path) -> Vec<String> {
    let read = |index: usize, file: &str| {
        std::fs::read_to_string(folder.join(format!("index{index}")).join(file)).map(|text| text.trim().to_string())
    };
    (0..8)
        .filter_map(|index| {
            let level = read(index, "level").ok()?;
            let size = read(index, "size").ok()?;
            let ways = read(index, "ways_of_associativity").ok()?;
            (read(index, "type").ok()? != "Instruction").then(|| format!("L{level}={size}/{ways}"))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for text in ["auto", "cpu", "cuda", "cuda:0", "cuda:11"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU"] {
            let error = text.parse::<DeviceChoice>().unwrap_err().to_string();
            assert_eq!(
                error,
                format!("the device must be auto, cpu, cuda or cuda:N, found `{text}`")
            );
        }
    }

    #[test]
    fn auto_takes_a_gpu_in_turn_and_says_why_not() {
        let auto = |rank, count: Result<usize, String>| Device::choose(DeviceChoice::Auto, rank, || count).unwrap();
        assert_eq!(auto(5, Ok(4)).to_string(), "cuda:1");
        assert_eq!(auto(0, Ok(0)).to_string(), "cpu");
        let without = auto(0, Err("no driver".into()));
        assert_eq!((without.to_string().as_str(), without.reason()), ("cpu", "no driver"));
    }

    #[test]
    fn cuda_that_is_not_there_is_a_readable_error() {
        let ask = |choice, count: Result<usize, String>| Device::choose(choice, 0, || count);
        let error = |choice, count| ask(choice, count).unwrap_err().to_string();
        assert_eq!(
            error(DeviceChoice::Cuda(Some(2)), Ok(2)),
            "the device cuda:2 cannot be used: there are 2 GPUs, numbered from 0"
        );
        assert_eq!(
            error(DeviceChoice::Cuda(None), Err("no driver".into())),
            "the device cuda cannot be used: no driver"
        );
        assert!(error(DeviceChoice::Cuda(None), Ok(0)).contains("finds no GPU"));
        assert_eq!(ask(DeviceChoice::Cuda(Some(1)), Ok(2)).unwrap().cuda_index(), Some(1));
    }

    #[test]
    fn the_probe_of_this_machine_never_panics() {
        assert_eq!(Device::probe(DeviceChoice::Cpu, 0).unwrap().to_string(), "cpu");
        let auto = Device::probe(DeviceChoice::Auto, 0).unwrap();
        assert!(!auto.reason().is_empty());
        match Device::probe(DeviceChoice::Cuda(None), 0) {
            Ok(device) => assert!(device.cuda_index().is_some()),
            Err(error) => assert!(error.to_string().starts_with("the device cuda cannot be used: ")),
        }
    }

    #[test]
    fn a_uuid_is_written_as_nvml_writes_it() {
        let uuid = std::array::from_fn(|index| 0x10 * index as u8 + 0xa);
        assert_eq!(uuid_text(&uuid), "GPU-0a1a2a3a-4a5a-6a7a-8a9a-aabacadaeafa");
        assert_eq!(Device::cpu().cuda_uuid(), None);
    }

    #[test]
    fn the_fingerprint_names_what_chooses_the_bits() {
        let fingerprint = cpu_fingerprint();
        assert!(fingerprint.starts_with(std::env::consts::ARCH), "{fingerprint}");
        assert_eq!(fingerprint, cpu_fingerprint());
    }
}
