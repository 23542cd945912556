//! The fake library, loaded for one test.

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::{Gpus, NvmlReader};

const SUCCESS: u32 = 0;

type SetDriver = extern "C" fn(u32, u32);
type SetGpu = extern "C" fn(u32, u32, u64, u32, u32, u32);
type SetClocks = extern "C" fn(u32, u32, u32);

/// A copy of the library, which no other test loads, and the functions that set its answers.
pub(crate) struct FakeNvml {
    pub path: PathBuf,
    pub set_driver: SetDriver,
    pub set_gpu: SetGpu,
    /// The architecture, the status of calls that set clocks, and a process that computes.
    pub set_clocks: SetClocks,
    _folder: tempfile::TempDir,
}

impl FakeNvml {
    pub fn new() -> Self {
        Self::without(&[])
    }

    /// A library that lacks these functions.
    pub fn without(missing: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libnvidia-ml.so.1");
        std::fs::write(&path, with_other_names(built_library(), missing)).unwrap();
        let name = CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the library runs no code when it is loaded. It stays loaded until the process ends.
        let image = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        assert!(!image.is_null(), "{} cannot be loaded", path.display());
        let symbol = |name: &std::ffi::CStr| {
            // SAFETY: the image is loaded and the name has its end.
            let address = unsafe { libc::dlsym(image, name.as_ptr()) };
            assert!(!address.is_null(), "the fake library has no {name:?}");
            address
        };
        // SAFETY: these are the types with which the library defines the functions.
        let (set_driver, set_gpu, set_clocks) = unsafe {
            (
                std::mem::transmute::<*mut libc::c_void, SetDriver>(symbol(c"fake_nvml_set_driver")),
                std::mem::transmute::<*mut libc::c_void, SetGpu>(symbol(c"fake_nvml_set_gpu")),
                std::mem::transmute::<*mut libc::c_void, SetClocks>(symbol(c"fake_nvml_set_clocks")),
            )
        };
        Self {
            path,
            set_driver,
            set_gpu,
            set_clocks,
            _folder: folder,
        }
    }

    pub fn answers(&self, index: u32, energy_mj: u64, power_mw: u32) {
        (self.set_gpu)(index, SUCCESS, energy_mj, SUCCESS, power_mw, 0);
    }

    pub fn fails(&self, index: u32, energy_status: u32, power_status: u32) {
        (self.set_gpu)(index, energy_status, 0, power_status, 0, 0);
    }

    pub fn reader(&self) -> NvmlReader {
        NvmlReader::load_from(&self.path).unwrap()
    }

    pub fn gpus(&self) -> Gpus {
        Gpus::open(Box::new(self.reader())).unwrap()
    }
}

/// The library as Cargo built it, beside this test.
fn built_library() -> Vec<u8> {
    let test = std::env::current_exe().unwrap();
    let path = test.with_file_name("libfake_nvml.so");
    std::fs::read(&path).unwrap_or_else(|error| panic!("{} ({error}): cargo builds it with the tests", path.display()))
}

/// A function whose name is changed in the file is not found under its own.
fn with_other_names(mut library: Vec<u8>, missing: &[&str]) -> Vec<u8> {
    for name in missing {
        let name = [name.as_bytes(), &[0]].concat();
        let places: Vec<usize> = library
            .windows(name.len())
            .enumerate()
            .filter(|(_, bytes)| *bytes == name)
            .map(|(place, _)| place)
            .collect();
        assert!(!places.is_empty(), "the fake library has no {name:?}");
        for place in places {
            library[place] = b'x';
        }
    }
    library
}
