use crate::domain::{DomainKey, DomainKind};
use crate::snapshot::DomainEnergy;

use super::*;

const IDLE_W: f64 = 40.0;
/// CPU seconds per second that a machine uses while nobody asks.
const IDLE_LOAD: f64 = 0.01;

/// What a request and a row truly cost, by owner.
fn request_j(owner: PartId) -> f64 {
    0.02 * f64::from(owner + 1)
}

const ROW_J: f64 = 2e-5;
const SLOT_S: f64 = 2.0;

/// What meters would show of `slots` on machines of one rank each, all of one host or each its own.
fn readings(slots: Vec<Slot>, ranks: Rank, kind: DomainKind, quality: Quality) -> ProbeReadings {
    let mut fetched = Vec::new();
    let mut machines: Vec<MachineReadings> = (0..ranks)
        .map(|rank| MachineReadings {
            ranks: vec![rank],
            hardware: Fingerprint::of_this_computer(Vec::new()),
            busy_thread_w: 10.0,
            slots: Vec::new(),
        })
        .collect();
    for slot in &slots {
        let (requests, rows, owner) = match *slot {
            Slot::Idle => (0, 0, None),
            Slot::Fetch { owner, rows, .. } | Slot::Deliver { owner, rows, .. } => (500, rows, Some(owner)),
            Slot::Together { rows, .. } => (300, rows, None),
        };
        fetched.push(slot.client().map(|_| Fetched {
            requests,
            rows,
            seconds: SLOT_S,
        }));
        let spent_j = owner.map_or(0.0, |owner| {
            f64::from(requests) * (request_j(owner) + ROW_J * f64::from(rows))
        });
        for (rank, machine) in machines.iter_mut().enumerate() {
            let is_client = slot.client() == Some(rank as Rank);
            let is_owner = owner == Some(rank as PartId);
            // The client pays a quarter, the owner the rest.
            let share = f64::from(u8::from(is_client)) * 0.25 + f64::from(u8::from(is_owner)) * 0.75;
            let host = format!("host-{rank}");
            machine.slots.push(EnergyReading {
                domains: vec![DomainEnergy {
                    key: DomainKey::new(&host, "package-0"),
                    kind,
                    joules: Some(IDLE_W * SLOT_S + share * spent_j),
                    quality,
                    gaps: 0,
                    gap_s: 0.0,
                }],
                host,
                duration_s: SLOT_S,
                cpu_s: IDLE_LOAD * SLOT_S + share * spent_j / 10.0,
            });
        }
    }
    ProbeReadings {
        slots,
        machines,
        fetched,
        row_bytes: 400,
        checksums: false,
        measured_at: 5.0,
    }
}

fn slots(ranks: usize) -> Vec<Slot> {
    ProbePlan::default().slots(&vec![10_000; ranks]).unwrap()
}

#[test]
fn counters_give_back_the_coefficients_that_were_spent() {
    let profile = readings(slots(4), 4, DomainKind::Package, Quality::Measured)
        .profile()
        .unwrap();
    assert_eq!(profile.quality, Quality::Measured);
    let idle_w = profile.idle_w.unwrap().value;
    assert!((idle_w - 4.0 * IDLE_W).abs() < 1e-6, "{idle_w}");
    assert_eq!(profile.placement, [[0], [1], [2], [3]]);
    for owner in &profile.owners {
        let intercept = owner.joules.intercept.value;
        assert!((intercept / request_j(owner.owner) - 1.0).abs() < 1e-6, "{owner:?}");
        assert!((owner.joules.slope.value / ROW_J - 1.0).abs() < 1e-6, "{owner:?}");
    }
    assert!((profile.client_share().unwrap() - 0.25).abs() < 1e-6);
    assert!(profile.delivery.is_some() && profile.bytes_per_s.is_some());
    assert_eq!((profile.fingerprint.computers, profile.measured_at), (4, 5.0));
}

#[test]
fn without_counters_joules_are_cpu_time_and_say_so() {
    let readings = readings(slots(3), 3, DomainKind::Estimate, Quality::Estimated);
    let profile = readings.profile().unwrap();
    assert_eq!(profile.quality, Quality::Estimated);
    assert!(profile.method.contains("CPU time at 10.00 W"), "{}", profile.method);
    let owner = &profile.owners[1];
    assert!(
        (owner.joules.intercept.value / request_j(1) - 1.0).abs() < 1e-6,
        "{owner:?}"
    );
}

#[test]
fn one_machine_without_a_counter_makes_all_joules_estimated() {
    let mut readings = readings(slots(3), 3, DomainKind::Package, Quality::Measured);
    for reading in &mut readings.machines[2].slots {
        reading.domains[0].joules = None;
        reading.domains[0].quality = Quality::Unavailable;
    }
    let profile = readings.profile().unwrap();
    assert_eq!(profile.quality, Quality::Estimated);
    // What idling costs is not known, and not 0.
    assert_eq!(profile.idle_w, None);
    assert!(
        profile.doubts().iter().any(|doubt| doubt.contains("idle power")),
        "{:?}",
        profile.doubts()
    );
    assert!(profile.to_string().contains("idle power unknown"), "{profile}");
}

#[test]
fn every_owner_is_asked_in_every_size_by_clients_in_turn_with_rests_between() {
    let plan = ProbePlan::default();
    let slots = plan.slots(&[5000; 4]).unwrap();
    for owner in 0..4 {
        for size in &plan.sizes {
            let clients: Vec<Rank> = slots
                .iter()
                .filter_map(|slot| match slot {
                    Slot::Fetch { client, owner: o, rows } if *o == owner && rows == size => Some(*client),
                    _ => None,
                })
                .collect();
            assert_eq!(clients.len(), 6);
            let others = (0..4).filter(|rank| *rank != owner);
            assert!(others.into_iter().all(|rank| clients.contains(&rank)), "{clients:?}");
            assert!(!clients.contains(&owner));
        }
    }
    let longest_without_rest = slots.split(|slot| *slot == Slot::Idle).map(<[Slot]>::len).max();
    assert_eq!(longest_without_rest, Some(4 + 1 + 1));
}

#[test]
fn sizes_that_an_owner_does_not_have_are_left_out_for_it() {
    let slots = ProbePlan::default().slots(&[5000, 300]).unwrap();
    let of_small = |slot: &&Slot| matches!(slot, Slot::Fetch { owner: 1, .. });
    assert!(
        slots
            .iter()
            .filter(of_small)
            .all(|slot| !matches!(slot, Slot::Fetch { rows: 1024.., .. }))
    );
    assert_eq!(slots.iter().filter(of_small).count(), 3 * 6);
}

#[test]
fn a_plan_fits_the_smallest_owner() {
    let sizes = |fewest| ProbePlan::default().fitting(fewest).sizes;
    assert_eq!(sizes(100), ProbePlan::default().sizes);
    assert_eq!(sizes(40), [1, 40]);
    assert!(ProbePlan::default().fitting(40).slots(&[5000, 40]).is_ok());
}

#[test]
fn plans_that_no_probe_can_follow_are_refused() {
    let with = |change: fn(&mut ProbePlan)| {
        let mut plan = ProbePlan::default();
        change(&mut plan);
        plan.slots(&[5000; 2]).unwrap_err().to_string()
    };
    assert!(with(|plan| plan.sizes = vec![5]).contains("sizes"));
    assert!(with(|plan| plan.sizes = vec![5, 5]).contains("different"));
    assert!(with(|plan| plan.repeats = 4).contains("5 to 1000"));
    assert!(with(|plan| plan.slot_s = Some(f64::NAN)).contains("seconds of a slot"));
    assert_eq!(ProbePlan::default().slots(&[5000]), Err(ProbePlanError::OneRank));
    let small = ProbePlan::default().slots(&[5000, 10]).unwrap_err();
    assert!(small.to_string().contains("part 1 has 10 rows"), "{small}");
}

#[test]
fn counters_need_longer_slots_than_cpu_time() {
    let plan = ProbePlan::default();
    assert!(plan.slot_seconds(Quality::Measured) > plan.slot_seconds(Quality::Estimated));
    let asked = ProbePlan {
        slot_s: Some(0.5),
        ..plan
    };
    assert_eq!(asked.slot_seconds(Quality::Measured), 0.5);
}
