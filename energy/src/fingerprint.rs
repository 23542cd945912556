//! What hardware figures were measured on. Coefficients and calibrations are worth nothing elsewhere.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// The hardware and the program that measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fingerprint {
    /// Processor models, each once, ascending.
    pub processors: Vec<String>,
    /// Logical processors of all machines.
    pub cores: u32,
    /// GPU models of all machines, ascending, one entry per GPU.
    pub gpus: Vec<String>,
    /// Computers of the cluster.
    pub computers: u32,
    /// Version of this program, whose speed is part of what is measured.
    pub version: String,
}

impl Fingerprint {
    /// This computer with the GPUs that are named.
    pub fn of_this_computer(mut gpus: Vec<String>) -> Self {
        let cpuinfo = std::fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
        gpus.sort_unstable();
        Self {
            processors: vec![processor_of(&cpuinfo)],
            cores: std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32),
            gpus,
            computers: 1,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// The fingerprint of a cluster from what its machine processes say, each with the identity of its computer. Of several on one
    /// computer, which may be limited to some of its processors, the one that has the most speaks for it.
    pub fn of_machines(machines: impl IntoIterator<Item = (String, Self)>) -> Self {
        let mut computers: BTreeMap<String, Self> = BTreeMap::new();
        for (host, machine) in machines {
            match computers.get(&host) {
                Some(known) if known.cores >= machine.cores => {}
                _ => {
                    computers.insert(host, machine);
                }
            }
        }
        Self::combine(computers.into_values())
    }

    /// The fingerprint of a cluster from those of its computers.
    pub fn combine(computers: impl IntoIterator<Item = Self>) -> Self {
        let mut all = Self {
            processors: Vec::new(),
            cores: 0,
            gpus: Vec::new(),
            computers: 0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        for computer in computers {
            all.processors.extend(computer.processors);
            all.cores += computer.cores;
            all.gpus.extend(computer.gpus);
            all.computers += computer.computers;
        }
        all.processors.sort_unstable();
        all.processors.dedup();
        all.gpus.sort_unstable();
        all
    }

    /// What differs from `here` first, in words; `None` if nothing does.
    pub fn difference(&self, here: &Self) -> Option<String> {
        let differs = |what: &str, there: String, here: String| Some(format!("{what}: {there} there, {here} here"));
        if self.processors != here.processors {
            return differs("processors", self.processors.join(" + "), here.processors.join(" + "));
        }
        if self.cores != here.cores {
            return differs("cores", self.cores.to_string(), here.cores.to_string());
        }
        if self.gpus != here.gpus {
            let names = |gpus: &[String]| {
                if gpus.is_empty() {
                    "none".to_owned()
                } else {
                    gpus.join(" + ")
                }
            };
            return differs("GPUs", names(&self.gpus), names(&here.gpus));
        }
        if self.computers != here.computers {
            return differs("computers", self.computers.to_string(), here.computers.to_string());
        }
        if self.version != here.version {
            return differs("program version", self.version.clone(), here.version.clone());
        }
        None
    }
}

/// The model of the first processor, as the kernel names it.
fn processor_of(cpuinfo: &str) -> String {
    let field = |name: &str| {
        let line = cpuinfo
            .lines()
            .find(|line| line.split(':').next().is_some_and(|key| key.trim() == name))?;
        line.split_once(':').map(|(_, value)| value.trim().to_owned())
    };
    // Arm kernels name no model but the parts that make it up.
    field("model name")
        .or_else(|| {
            Some(format!(
                "implementer {} part {}",
                field("CPU implementer")?,
                field("CPU part")?
            ))
        })
        .unwrap_or_else(|| format!("unknown {} processor", std::env::consts::ARCH))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn computer(processor: &str, gpus: &[&str]) -> Fingerprint {
        Fingerprint {
            processors: vec![processor.to_owned()],
            cores: 8,
            gpus: gpus.iter().map(|gpu| (*gpu).to_owned()).collect(),
            computers: 1,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    #[test]
    fn a_cluster_is_the_same_in_any_order_of_its_computers() {
        let (a, b) = (computer("Xeon", &["P100", "A100"]), computer("EPYC", &["A100"]));
        let one_way = Fingerprint::combine([a.clone(), b.clone()]);
        assert_eq!(one_way, Fingerprint::combine([b, a]));
        assert_eq!((one_way.cores, one_way.computers, one_way.gpus.len()), (16, 2, 3));
        assert_eq!(one_way.difference(&one_way.clone()), None);
    }

    #[test]
    fn what_differs_is_named() {
        let here = computer("Xeon", &["P100"]);
        assert_eq!(
            computer("EPYC", &["P100"]).difference(&here).unwrap(),
            "processors: EPYC there, Xeon here"
        );
        assert_eq!(
            computer("Xeon", &[]).difference(&here).unwrap(),
            "GPUs: none there, P100 here"
        );
    }

    #[test]
    fn processors_of_several_kernels_have_names() {
        assert_eq!(processor_of("processor\t: 0\nmodel name\t: Xeon 8175M\n"), "Xeon 8175M");
        assert_eq!(
            processor_of("CPU implementer\t: 0x41\nCPU part\t: 0xd0c\n"),
            "implementer 0x41 part 0xd0c"
        );
        assert!(processor_of("").starts_with("unknown"));
        assert!(!Fingerprint::of_this_computer(Vec::new()).processors[0].is_empty());
    }

    #[test]
    fn machines_of_one_computer_are_one_whatever_their_order() {
        let machine = |cores| Fingerprint {
            cores,
            ..computer("a", &[])
        };
        let of = |machines: [(&str, u32); 3]| {
            Fingerprint::of_machines(machines.map(|(host, cores)| (host.to_owned(), machine(cores))))
        };
        let cluster = of([("x", 2), ("x", 4), ("y", 8)]);
        assert_eq!((cluster.computers, cluster.cores), (2, 12));
        assert_eq!(cluster, of([("y", 8), ("x", 4), ("x", 2)]));
    }
}
