//! The CPU quota of the control group that this process is in, and the CPU time that the group has used.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A group's CPU time.
#[derive(Debug)]
pub struct CpuUsage {
    file: File,
    /// Version 2 has `usage_usec N` in `cpu.stat`, version 1 nanoseconds in `cpuacct.usage`.
    unified: bool,
}

impl CpuUsage {
    /// Seconds that the group's threads were busy.
    pub fn seconds(&self) -> Option<f64> {
        let mut buffer = [0; 512];
        let text = read_start(&self.file, &mut buffer)?;
        if self.unified {
            let line = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
            Some(line.trim().parse::<u64>().ok()? as f64 * 1e-6)
        } else {
            Some(text.trim().parse::<u64>().ok()? as f64 * 1e-9)
        }
    }
}

/// The start of a file of the kernel, read anew.
pub(super) fn read_start<'a>(file: &File, buffer: &'a mut [u8]) -> Option<&'a str> {
    let length = file.read_at(buffer, 0).ok()?;
    std::str::from_utf8(buffer.get(..length)?).ok()
}

/// The tightest quota over this process.
#[derive(Debug)]
pub struct CpuQuota {
    /// Hardware threads that it is worth.
    pub threads: f64,
    /// Inode of the group that has it: the same for all processes of the group, also where a container hides the path.
    pub inode: u64,
    pub usage: CpuUsage,
}

impl CpuQuota {
    /// Finds it under `cgroups`, the mount point (`/sys/fs/cgroup`), for the groups in `PROC/self/cgroup`.
    pub fn find(proc_root: &Path, cgroups: &Path) -> Option<CpuQuota> {
        let membership = std::fs::read_to_string(proc_root.join("self/cgroup")).ok()?;
        let candidates = membership.lines().filter_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let has = |name: &str| controllers.split(',').any(|controller| controller == name);
            if controllers.is_empty() {
                let mount = [cgroups.to_owned(), cgroups.join("unified")]
                    .into_iter()
                    .find(|mount| mount.join("cgroup.controllers").exists())?;
                tightest(&mount, path, quota_v2).map(|(threads, group)| (threads, group, true))
            } else if has("cpu") {
                let mount = [cgroups.join(controllers), cgroups.join("cpu")]
                    .into_iter()
                    .find(|mount| mount.is_dir())?;
                tightest(&mount, path, quota_v1).map(|(threads, group)| (threads, group, false))
            } else {
                None
            }
        });
        let (threads, group, unified) = candidates.min_by(|a, b| a.0.total_cmp(&b.0))?;
        let usage = if unified {
            group.join("cpu.stat")
        } else {
            accounting_file(&group, cgroups)?
        };
        Some(CpuQuota {
            threads,
            inode: std::fs::metadata(&group).ok()?.ino(),
            usage: CpuUsage {
                file: File::open(usage).ok()?,
                unified,
            },
        })
    }
}

/// The smallest quota from the group at `path` up to the mount point. In a container the path may be that of the host,
/// which is not there; its own group is then the mount point.
fn tightest(mount: &Path, path: &str, quota: fn(&Path) -> Option<f64>) -> Option<(f64, PathBuf)> {
    let own = mount.join(path.trim_start_matches('/'));
    let inside = !path.split('/').any(|part| part == "..") && own.is_dir();
    let own = if inside { own } else { mount.to_owned() };
    own.ancestors()
        .take_while(|group| group.starts_with(mount))
        .filter_map(|group| Some((quota(group)?, group.to_owned())))
        .min_by(|a, b| a.0.total_cmp(&b.0))
}

/// `cpu.max`: quota and period in microseconds, or `max`.
fn quota_v2(group: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(group.join("cpu.max")).ok()?;
    let mut fields = text.split_whitespace();
    threads_of(fields.next()?.parse().ok()?, fields.next()?.parse().ok()?)
}

/// `cpu.cfs_quota_us` over `cpu.cfs_period_us`; -1 is none.
fn quota_v1(group: &Path) -> Option<f64> {
    let read = |name: &str| std::fs::read_to_string(group.join(name)).ok()?.trim().parse().ok();
    threads_of(read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?)
}

fn threads_of(quota_us: f64, period_us: f64) -> Option<f64> {
    (quota_us > 0.0 && period_us > 0.0).then(|| quota_us / period_us)
}

/// `cpuacct.usage` of a version 1 group: beside the quota, or at the same path of the other hierarchy.
fn accounting_file(group: &Path, cgroups: &Path) -> Option<PathBuf> {
    let beside = group.join("cpuacct.usage");
    if beside.exists() {
        return Some(beside);
    }
    let below: PathBuf = group.strip_prefix(cgroups).ok()?.components().skip(1).collect();
    Some(cgroups.join("cpuacct").join(below).join("cpuacct.usage")).filter(|path| path.exists())
}
