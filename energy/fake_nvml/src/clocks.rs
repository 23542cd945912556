//! The clocks of the fake GPUs.
//!
//! Environment variables, read when NVML is started, let a test reach into other processes: `FAKE_NVML_CLOCKS` names a
//! file that holds what is set, one line per GPU (`locked memory graphics`, in MHz), and outlives every process;
//! `FAKE_NVML_ARCHITECTURE` is NVML's number of the architecture, 4 for Pascal, which has application clocks only;
//! `FAKE_NVML_SET_STATUS` is the status of every call that sets a clock.

use std::ffi::{c_uint, c_void};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use super::{INSUFFICIENT_SIZE, INVALID_ARGUMENT, MOST_GPUS, NOT_SUPPORTED, SUCCESS, answer, gpu, index_of};

const PASCAL: u32 = 4;
const AMPERE: u32 = 7;

/// What a GPU supports, in MHz. The lists descend, as NVML's do.
const MEMORY_CLOCKS: [u32; 1] = [715];
const GRAPHICS_CLOCKS: [u32; 3] = [1328, 1189, 544];

static ARCHITECTURE: AtomicU32 = AtomicU32::new(AMPERE);

/// The status of every call that sets a clock.
static SET_STATUS: AtomicU32 = AtomicU32::new(SUCCESS);

/// The id of a process that computes on all GPUs; 0 for none.
static COMPUTING: AtomicU32 = AtomicU32::new(0);

/// The clocks that are set. `locked` is 0 where none is.
#[derive(Clone, Copy)]
struct Clocks {
    locked: u32,
    memory: u32,
    graphics: u32,
}

const DEFAULT: Clocks = Clocks {
    locked: 0,
    memory: 715,
    graphics: 1328,
};

static CLOCKS: Mutex<[Clocks; MOST_GPUS]> = Mutex::new([DEFAULT; MOST_GPUS]);

/// Where the clocks are kept, if anywhere.
static FILE: Mutex<Option<PathBuf>> = Mutex::new(None);

/// Sets the architecture, the status of every call that sets a clock, and a process that computes on all GPUs.
#[unsafe(no_mangle)]
pub extern "C" fn fake_nvml_set_clocks(architecture: u32, set_status: u32, computing: u32) {
    ARCHITECTURE.store(architecture, SeqCst);
    SET_STATUS.store(set_status, SeqCst);
    COMPUTING.store(computing, SeqCst);
}

pub(crate) fn read_environment() {
    if let Some(architecture) = std::env::var("FAKE_NVML_ARCHITECTURE")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        ARCHITECTURE.store(architecture, SeqCst);
    }
    if let Some(status) = std::env::var("FAKE_NVML_SET_STATUS")
        .ok()
        .and_then(|text| text.parse().ok())
    {
        SET_STATUS.store(status, SeqCst);
    }
    let Some(path) = std::env::var_os("FAKE_NVML_CLOCKS").map(PathBuf::from) else {
        return;
    };
    if let Ok(text) = std::fs::read_to_string(&path)
        && let Ok(mut clocks) = CLOCKS.lock()
    {
        for (clocks, line) in clocks.iter_mut().zip(text.lines()) {
            let mut numbers = line.split_whitespace().map(|number| number.parse().unwrap_or(0));
            let mut next = || numbers.next().unwrap_or(0);
            *clocks = Clocks {
                locked: next(),
                memory: next(),
                graphics: next(),
            };
        }
    }
    if let Ok(mut file) = FILE.lock() {
        *file = Some(path);
    }
}

fn has_locked_clocks() -> bool {
    ARCHITECTURE.load(SeqCst) > PASCAL
}

fn clocks(device: *mut c_void) -> Result<Clocks, u32> {
    let clocks = CLOCKS.lock().map_err(|_| INVALID_ARGUMENT)?;
    clocks.get(index_of(device)).copied().ok_or(INVALID_ARGUMENT)
}

/// Changes what is set, as far as the architecture and the status of the calls allow it.
fn set(device: *mut c_void, is_supported: bool, change: impl FnOnce(&mut Clocks)) -> u32 {
    let driver = super::DRIVER_STATUS.load(SeqCst);
    match (driver, is_supported, SET_STATUS.load(SeqCst)) {
        (SUCCESS, true, SUCCESS) => {}
        (SUCCESS, false, _) => return NOT_SUPPORTED,
        (SUCCESS, true, status) => return status,
        (driver, _, _) => return driver,
    }
    let (Ok(mut clocks), Ok(file)) = (CLOCKS.lock(), FILE.lock()) else {
        return INVALID_ARGUMENT;
    };
    let Some(one) = clocks.get_mut(index_of(device)) else {
        return INVALID_ARGUMENT;
    };
    change(one);
    if let Some(path) = &*file {
        let line = |clocks: &Clocks| format!("{} {} {}\n", clocks.locked, clocks.memory, clocks.graphics);
        let text: String = clocks.iter().map(line).collect();
        if std::fs::write(path, text).is_err() {
            return INVALID_ARGUMENT;
        }
    }
    SUCCESS
}

/// Writes a list whose room is `count`.
///
/// # Safety
/// `count` may be read and written, and `to` has room for as many.
unsafe fn answer_list(count: *mut c_uint, to: *mut c_uint, list: &[u32]) -> u32 {
    if count.is_null() {
        return INVALID_ARGUMENT;
    }
    let room = unsafe { *count } as usize;
    unsafe { *count = list.len() as c_uint };
    if room < list.len() || to.is_null() {
        return INSUFFICIENT_SIZE;
    }
    unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), to, list.len()) };
    SUCCESS
}

/// # Safety
/// As for NVML: `architecture` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetArchitecture(device: *mut c_void, architecture: *mut c_uint) -> u32 {
    let found = gpu(device).map(|_| ARCHITECTURE.load(SeqCst));
    unsafe { answer(architecture, found) }
}

/// # Safety
/// As for NVML: `megahertz` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(device: *mut c_void, kind: c_uint, megahertz: *mut c_uint) -> u32 {
    let observed = clocks(device).map(|clocks| match (kind, clocks.locked) {
        (2, _) => clocks.memory,
        (_, 0) => clocks.graphics,
        (_, locked) => locked,
    });
    unsafe { answer(megahertz, observed) }
}

/// # Safety
/// As for NVML: `megahertz` may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetApplicationsClock(
    device: *mut c_void,
    kind: c_uint,
    megahertz: *mut c_uint,
) -> u32 {
    let set = clocks(device).map(|clocks| if kind == 2 { clocks.memory } else { clocks.graphics });
    unsafe { answer(megahertz, set) }
}

/// # Safety
/// As for NVML: `count` may be read and written, and `clocks` has room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedMemoryClocks(
    _device: *mut c_void,
    count: *mut c_uint,
    clocks: *mut c_uint,
) -> u32 {
    unsafe { answer_list(count, clocks, &MEMORY_CLOCKS) }
}

/// # Safety
/// As for NVML: `count` may be read and written, and `clocks` has room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetSupportedGraphicsClocks(
    _device: *mut c_void,
    _memory: c_uint,
    count: *mut c_uint,
    clocks: *mut c_uint,
) -> u32 {
    unsafe { answer_list(count, clocks, &GRAPHICS_CLOCKS) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetGpuLockedClocks(device: *mut c_void, least: c_uint, _most: c_uint) -> u32 {
    set(device, has_locked_clocks(), |clocks| clocks.locked = least)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceResetGpuLockedClocks(device: *mut c_void) -> u32 {
    set(device, has_locked_clocks(), |clocks| clocks.locked = 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceSetApplicationsClocks(device: *mut c_void, memory: c_uint, graphics: c_uint) -> u32 {
    if !MEMORY_CLOCKS.contains(&memory) || !GRAPHICS_CLOCKS.contains(&graphics) {
        return INVALID_ARGUMENT;
    }
    set(device, true, |clocks| {
        clocks.memory = memory;
        clocks.graphics = graphics;
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceResetApplicationsClocks(device: *mut c_void) -> u32 {
    set(device, true, |clocks| {
        clocks.memory = DEFAULT.memory;
        clocks.graphics = DEFAULT.graphics;
    })
}

/// What NVML tells of a process, version 2 of the layout.
#[repr(C)]
pub struct ProcessInfo {
    pid: c_uint,
    memory: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// # Safety
/// As for NVML: `count` may be read and written, and `processes` has room for as many.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    _device: *mut c_void,
    count: *mut c_uint,
    processes: *mut ProcessInfo,
) -> u32 {
    if count.is_null() {
        return INVALID_ARGUMENT;
    }
    let room = unsafe { *count };
    let pid = COMPUTING.load(SeqCst);
    unsafe { *count = c_uint::from(pid != 0) };
    if pid == 0 {
        return SUCCESS;
    }
    if room == 0 || processes.is_null() {
        return INSUFFICIENT_SIZE;
    }
    let process = ProcessInfo {
        pid,
        memory: 0,
        gpu_instance: u32::MAX,
        compute_instance: u32::MAX,
    };
    unsafe { processes.write(process) };
    SUCCESS
}
