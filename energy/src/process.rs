//! What a process uses, exactly, on every machine: CPU seconds and memory. And which computer it is on.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// CPU and memory of the calling process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessUse {
    /// CPU seconds, user and system, of all its threads since it started.
    pub cpu_s: f64,
    /// Largest resident set (`VmHWM`) in bytes; memory maps inflate it.
    pub peak_rss_bytes: u64,
    /// Largest anonymous memory (`RssAnon`) in bytes that the meter saw.
    pub peak_anon_bytes: u64,
}

/// CPU seconds, user and system, that all threads of this process have used since it started.
pub fn cpu_seconds() -> f64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is a valid rusage that outlives the call, and all zeros is a valid value of it.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) != 0 {
            return 0.0;
        }
        usage.assume_init()
    };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

/// The kernel's boot id: one value per start of a computer, the same in all of its containers.
///
/// Without one, the host name and the time of the start are used, which tell computers apart as well, but not
/// containers together.
pub fn boot_id() -> String {
    boot_id_of(Path::new("/proc"))
}

fn boot_id_of(proc_root: &Path) -> String {
    let read = |name: &str| std::fs::read_to_string(proc_root.join(name)).unwrap_or_default();
    let id = read("sys/kernel/random/boot_id");
    if !id.trim().is_empty() {
        return id.trim().to_owned();
    }
    let hostname = read("sys/kernel/hostname");
    let stat = read("stat");
    let started = stat.lines().find_map(|line| line.strip_prefix("btime ")).unwrap_or("0");
    format!("{}@{}", hostname.trim(), started.trim())
}

/// Follows the memory of this process: the kernel keeps the peak of all memory, and of the anonymous part only its
/// present size.
#[derive(Debug)]
pub struct ProcessWatch {
    status: Option<File>,
    buffer: Vec<u8>,
    peak_rss_bytes: u64,
    peak_anon_bytes: u64,
}

impl ProcessWatch {
    /// Watches the calling process.
    pub fn open() -> Self {
        let status = File::open("/proc/self/status").ok();
        Self {
            status,
            buffer: vec![0; 8 * 1024],
            peak_rss_bytes: 0,
            peak_anon_bytes: 0,
        }
    }

    /// Looks at the memory once.
    pub fn sample(&mut self) {
        let Some(status) = &self.status else { return };
        let Ok(length) = status.read_at(&mut self.buffer, 0) else {
            return;
        };
        let text = String::from_utf8_lossy(&self.buffer[..length]);
        self.peak_rss_bytes = self.peak_rss_bytes.max(status_bytes(&text, "VmHWM").unwrap_or(0));
        self.peak_anon_bytes = self.peak_anon_bytes.max(status_bytes(&text, "RssAnon").unwrap_or(0));
    }

    /// CPU seconds now, and the peaks so far.
    pub fn usage(&self) -> ProcessUse {
        ProcessUse {
            cpu_s: cpu_seconds(),
            peak_rss_bytes: self.peak_rss_bytes,
            peak_anon_bytes: self.peak_anon_bytes,
        }
    }
}

/// The bytes of a line such as `RssAnon:     1234 kB`.
fn status_bytes(status: &str, name: &str) -> Option<u64> {
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    let kibibytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_costs_cpu_seconds() {
        let before = cpu_seconds();
        let mut sum = 0u64;
        while cpu_seconds() - before < 0.02 {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        assert!(cpu_seconds() >= before + 0.02);
    }

    #[test]
    fn memory_that_is_touched_shows_in_both_peaks() {
        let mut watch = ProcessWatch::open();
        watch.sample();
        let before = watch.usage();
        assert!(before.peak_rss_bytes > 0 && before.peak_anon_bytes > 0);
        let size = before.peak_anon_bytes as usize + (32 << 20);
        let block = std::hint::black_box(vec![1u8; size]);
        watch.sample();
        let after = watch.usage();
        assert!(after.peak_anon_bytes >= block.len() as u64);
        assert!(after.peak_rss_bytes >= after.peak_anon_bytes);
        drop(block);
        watch.sample();
        assert_eq!(watch.usage().peak_anon_bytes, after.peak_anon_bytes);
    }

    #[test]
    fn status_lines_are_read_by_their_whole_name() {
        let status = "VmHWM:\t    2048 kB\nRssAnon:\t      16 kB\nRssAnonHuge: 99 kB\n";
        assert_eq!(status_bytes(status, "VmHWM"), Some(2 << 20));
        assert_eq!(status_bytes(status, "RssAnon"), Some(16 << 10));
        assert_eq!(status_bytes(status, "RssFile"), None);
    }

    #[test]
    fn the_boot_id_has_a_substitute() {
        let proc_root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(proc_root.path().join("sys/kernel/random")).unwrap();
        std::fs::write(proc_root.path().join("sys/kernel/hostname"), "box\n").unwrap();
        std::fs::write(proc_root.path().join("stat"), "cpu 1\nbtime 77\n").unwrap();
        assert_eq!(boot_id_of(proc_root.path()), "box@77");
        std::fs::write(proc_root.path().join("sys/kernel/random/boot_id"), "abc-def\n").unwrap();
        assert_eq!(boot_id_of(proc_root.path()), "abc-def");
        assert_eq!(boot_id(), boot_id());
    }
}
