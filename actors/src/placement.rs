//! Which machine hosts which rank.

use std::net::SocketAddr;

use greengnn_model::book::PartId;

use crate::protocol::{JoinRequest, MachineInfo};

/// Why ranks cannot be placed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlacementError {
    #[error("no machine holds part {part}; the machines that joined hold {held}")]
    PartMissing { part: PartId, held: String },
    #[error(
        "{machines} machines are more than the {parts} parts of the graph; a machine without a part has nothing to do"
    )]
    TooManyMachines { machines: usize, parts: PartId },
    #[error(
        "machine {machine} is reached at {address}, which other computers cannot reach: let it join by an address that \
         they can, or give it --listen"
    )]
    Unreachable { machine: String, address: String },
    #[error("machine {machine} would get no rank: others hold all of its parts ({parts})")]
    Idle { machine: String, parts: String },
}

/// Gives each part to the machine that holds it and has the fewest ranks so far; ties by name. `requests` is sorted by
/// name, and so is the answer.
pub fn place(parts: PartId, requests: &[&JoinRequest]) -> Result<Vec<MachineInfo>, PlacementError> {
    if requests.len() > usize::from(parts) {
        return Err(PlacementError::TooManyMachines {
            machines: requests.len(),
            parts,
        });
    }
    let mut machines: Vec<MachineInfo> = requests
        .iter()
        .map(|request| MachineInfo {
            name: request.name.clone(),
            control_address: request.control_address.clone(),
            boot_id: request.boot_id.clone(),
            process: request.process,
            ranks: Vec::new(),
        })
        .collect();
    // Parts that few machines hold are placed first, so that a machine with one part is not left without it.
    let holders = |part: &PartId| requests.iter().filter(|request| request.parts.contains(part)).count();
    let mut order: Vec<PartId> = (0..parts).collect();
    order.sort_by_key(|part| (holders(part), *part));
    for part in order {
        let best = requests
            .iter()
            .enumerate()
            .filter(|(_, request)| request.parts.contains(&part))
            .min_by_key(|(index, _)| (machines[*index].ranks.len(), *index));
        let Some((index, _)) = best else {
            let held: Vec<String> = requests
                .iter()
                .map(|request| format!("{}: {}", request.name, list(&request.parts)))
                .collect();
            return Err(PlacementError::PartMissing {
                part,
                held: held.join("; "),
            });
        };
        machines[index].ranks.push(part);
    }
    for (machine, request) in machines.iter_mut().zip(requests) {
        machine.ranks.sort_unstable();
        if machine.ranks.is_empty() {
            return Err(PlacementError::Idle {
                machine: machine.name.clone(),
                parts: list(&request.parts),
            });
        }
    }
    Ok(machines)
}

/// Refuses an address of this computer only, when the machines are on several.
pub fn check_addresses(requests: &[&JoinRequest]) -> Result<(), PlacementError> {
    let on_one_host = requests.windows(2).all(|pair| pair[0].boot_id == pair[1].boot_id);
    let local = |address: &str| {
        let address: Result<SocketAddr, _> = address.parse();
        address.is_ok_and(|address| address.ip().is_loopback() || address.ip().is_unspecified())
    };
    match requests
        .iter()
        .find(|request| !on_one_host && local(&request.control_address))
    {
        None => Ok(()),
        Some(request) => Err(PlacementError::Unreachable {
            machine: request.name.clone(),
            address: request.control_address.clone(),
        }),
    }
}

/// Numbers with commas between.
pub fn list(parts: &[PartId]) -> String {
    parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The fingerprint of the cluster's CPUs: one where all are alike, else all of them.
pub fn fingerprint<'a>(requests: impl Iterator<Item = &'a JoinRequest>) -> String {
    let mut fingerprints: Vec<&str> = requests.map(|request| request.cpu_fingerprint.as_str()).collect();
    fingerprints.sort_unstable();
    fingerprints.dedup();
    fingerprints.join(" + ")
}

/// Says that results are only close, not equal to the bit, when the CPUs differ.
pub fn warn_of_mixed_cpus(requests: &[&JoinRequest], mut say: impl FnMut(&str)) {
    let all = fingerprint(requests.iter().copied());
    if all.contains(" + ") {
        say(&format!(
            "warning: the machines' CPUs differ ({all}); results agree to about 1e-5, not to the bit"
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(name: &str, parts: &[PartId]) -> JoinRequest {
        JoinRequest {
            name: name.to_owned(),
            incarnation: 0,
            protocol: 1,
            version: String::new(),
            parts: parts.to_vec(),
            manifest_sha256: String::new(),
            cpu_fingerprint: "avx2".to_owned(),
            boot_id: String::new(),
            process: 0,
            control_address: String::new(),
        }
    }

    fn ranks(parts: PartId, requests: &[JoinRequest]) -> Result<Vec<Vec<PartId>>, PlacementError> {
        let borrowed: Vec<&JoinRequest> = requests.iter().collect();
        Ok(place(parts, &borrowed)?
            .into_iter()
            .map(|machine| machine.ranks)
            .collect())
    }

    #[test]
    fn machines_that_hold_everything_share_the_ranks() {
        let all = [request("a", &[0, 1, 2, 3]), request("b", &[0, 1, 2, 3])];
        assert_eq!(ranks(4, &all).unwrap(), [vec![0, 2], vec![1, 3]]);
    }

    #[test]
    fn a_machine_with_one_part_gets_it() {
        let some = [request("a", &[0, 1]), request("b", &[0])];
        assert_eq!(ranks(2, &some).unwrap(), [vec![1], vec![0]]);
    }

    #[test]
    fn a_loopback_address_is_refused_only_across_computers() {
        let at = |name: &str, host: &str, address: &str| JoinRequest {
            boot_id: host.to_owned(),
            control_address: address.to_owned(),
            ..request(name, &[0])
        };
        let (a, b) = (at("a", "one", "127.0.0.1:9"), at("b", "two", "10.0.0.2:9"));
        assert_eq!(check_addresses(&[&a, &at("b", "one", "[::1]:9")]), Ok(()));
        let error = check_addresses(&[&a, &b]).unwrap_err();
        assert_eq!(
            error,
            PlacementError::Unreachable {
                machine: "a".to_owned(),
                address: "127.0.0.1:9".to_owned()
            }
        );
    }

    #[test]
    fn a_missing_part_and_an_idle_machine_are_named() {
        let error = ranks(3, &[request("a", &[0]), request("b", &[2])]).unwrap_err();
        assert_eq!(
            error.to_string(),
            "no machine holds part 1; the machines that joined hold a: 0; b: 2"
        );
        let too_many = ranks(1, &[request("a", &[0]), request("b", &[0])]).unwrap_err();
        assert_eq!(too_many, PlacementError::TooManyMachines { machines: 2, parts: 1 });
        let idle = ranks(2, &[request("a", &[0]), request("b", &[0, 1])]);
        assert_eq!(idle.unwrap(), [vec![0], vec![1]]);
    }
}
