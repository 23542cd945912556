//! The prober of a rank: goes through the slots of a [probe](greengnn_energy::probing) together with all other ranks.
//!
//! Two barriers frame a slot. Meters are read outside of them, so that what all machines do between two readings of a slot
//! is the same whether somebody asks or nobody does, but for the asking. One rank of each machine reads the meter.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use greengnn_energy::estimate::busy_thread_watts;
use greengnn_energy::fingerprint::Fingerprint;
use greengnn_energy::meter::Meter;
use greengnn_energy::nvml::{GpuReader, NvmlReader};
use greengnn_energy::probing::{Fetched, MachineReadings, ProbePlan, ProbePlanError, ProbeReadings, Slot};
use greengnn_energy::profile::{Profile, ProfileError};
use greengnn_energy::snapshot::{EnergyReading, EnergySnapshot, combine};
use greengnn_model::book::{PartId, PartitionBook, Rank};
use greengnn_model::counters::{Period, Phase, Traffic};
use greengnn_model::rng::{CounterRng, mix_words};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use crate::causes::in_one_line;
use crate::collective::{Collective, CollectiveError, Moment};
use crate::transport::{Arrival, Caller, ParcelKind, RowSink, ScheduledRows, Transport, TransportError};

#[cfg(test)]
mod tests;

/// Keeps the draws of the rows that are asked for apart from all others.
const ROWS: u64 = 0x726f_7773_0000;
/// Lists of rows that take turns, so that the owner's caches do not know the next one.
const LISTS: u64 = 16;
/// Deliveries of a stream that are granted before the first of them has come.
const GRANTED_AHEAD: usize = 8;
/// How long all ranks rest to find out how good their meters are.
const FIRST_REST: Duration = Duration::from_millis(200);
/// The steps of the moments before and after the slots.
const QUALITY: u32 = u32::MAX;
const READINGS: u32 = u32::MAX - 1;
const HARDWARE: u32 = u32::MAX - 2;

/// Why a probe could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    #[error(transparent)]
    Plan(#[from] ProbePlanError),
    #[error(
        "the probe takes about {seconds:.0} s, and the ranks wait {within} s for each other; raise --deadline-s, or probe \
         shorter or fewer sizes"
    )]
    TooLong { seconds: f64, within: u64 },
    #[error("the ranks did not go through the probe together: {}", in_one_line(.0))]
    Together(#[from] CollectiveError),
    #[error("rank {client} could not fetch from owner {owner}: {}", in_one_line(source))]
    Fetch {
        client: Rank,
        owner: PartId,
        source: TransportError,
    },
    #[error("what rank {rank} saw of the probe cannot be read: {reason}")]
    Damaged { rank: Rank, reason: String },
    #[error(transparent)]
    Profile(#[from] ProfileError),
    #[error("the meter could not be asked: {0}")]
    Task(#[from] tokio::task::JoinError),
}

/// The meter of a machine, for the one rank that reads it.
#[derive(Clone)]
pub struct MachineMeter {
    pub meter: Arc<Meter>,
    /// The ranks of the machine.
    pub ranks: Vec<Rank>,
}

/// One rank's part in a probe.
pub struct Prober {
    pub rank: Rank,
    pub plan: ProbePlan,
    /// Who owns which feature rows.
    pub book: Arc<PartitionBook>,
    pub transport: Arc<dyn Transport>,
    pub collective: Collective,
    /// Bytes of an encoded row.
    pub row_bytes: usize,
    /// Whether the lanes check what they carry.
    pub checksums: bool,
    /// None for ranks whose machine is read by another.
    pub meter: Option<MachineMeter>,
    /// The longest that a whole probe may last.
    pub within: Duration,
}

/// What one rank brings to the profile.
#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    machine: Option<MachineReadings>,
    /// By slot; none where another rank asked.
    fetched: Vec<Option<Fetched>>,
    measured_at: f64,
}

impl Prober {
    /// Goes through all slots. Every rank comes to the same profile; the traffic is this rank's own.
    ///
    /// # Errors
    /// A plan that these owners cannot follow, a rank or owner that does not answer, or readings without a line.
    pub async fn run(&self) -> Result<(Profile, Traffic), ProbeError> {
        let owner_rows: Vec<u32> = (0..self.book.parts()).map(|part| self.book.part_nodes(part)).collect();
        let slots = self.plan.slots(&owner_rows)?;
        let slot_s = self.slot_seconds().await?;
        let seconds = slots.len() as f64 * slot_s;
        if seconds > self.within.as_secs_f64() {
            let within = self.within.as_secs();
            return Err(ProbeError::TooLong { seconds, within });
        }
        let slot_time = Duration::from_secs_f64(slot_s);
        let (mut readings, mut fetched, mut traffic) = (Vec::new(), Vec::new(), Traffic::default());
        for (index, slot) in (0u32..).zip(&slots) {
            let before = self.snapshot().await?;
            self.barrier(index, 0).await?;
            let found = self.take_part(*slot, slot_time, &owner_rows).await?;
            self.barrier(index, 1).await?;
            if let (Some(before), Some(after)) = (before, self.snapshot().await?) {
                readings.push(after.since(&before));
            }
            if let Some(fetched) = &found {
                traffic += self.traffic_of(*slot, fetched);
            }
            fetched.push(found);
        }
        let machine = match &self.meter {
            Some(machine) => Some(MachineReadings {
                ranks: machine.ranks.clone(),
                hardware: own_hardware().await?,
                busy_thread_w: busy_thread_watts(),
                slots: readings,
            }),
            None => None,
        };
        let seen = Seen {
            machine,
            fetched,
            measured_at: greengnn_energy::clock::unix_now_s(),
        };
        let all: Vec<Seen> = self.gather(READINGS, &seen).await?;
        Ok((self.profile(slots, all)?, traffic))
    }

    /// The hardware that takes part, and the ranks of every machine.
    ///
    /// # Errors
    /// A rank that does not answer.
    pub async fn hardware(&self) -> Result<(Fingerprint, Vec<Vec<Rank>>), ProbeError> {
        let own = match &self.meter {
            Some(machine) => Some((
                greengnn_energy::process::boot_id(),
                own_hardware().await?,
                machine.ranks.clone(),
            )),
            None => None,
        };
        let all: Vec<Option<(String, Fingerprint, Vec<Rank>)>> = self.gather(HARDWARE, &own).await?;
        let machines = || all.iter().flatten();
        let mut placement: Vec<Vec<Rank>> = machines().map(|(_, _, ranks)| ranks.clone()).collect();
        placement.sort_unstable();
        let hardware = machines().map(|(host, hardware, _)| (host.clone(), hardware.clone()));
        Ok((Fingerprint::of_machines(hardware), placement))
    }

    fn profile(&self, slots: Vec<Slot>, all: Vec<Seen>) -> Result<Profile, ProbeError> {
        let measured_at = all.first().map_or(0.0, |seen| seen.measured_at);
        let mut machines = Vec::new();
        let mut fetched = vec![None; slots.len()];
        for (rank, seen) in (0..).zip(all) {
            let damaged = |reason: &str| ProbeError::Damaged {
                rank,
                reason: reason.to_owned(),
            };
            if seen.fetched.len() != slots.len() {
                return Err(damaged("it went through another number of slots"));
            }
            for (place, found) in fetched.iter_mut().zip(seen.fetched) {
                *place = found.or(*place);
            }
            if let Some(machine) = seen.machine {
                if machine.slots.len() != slots.len() {
                    return Err(damaged("its meter was not read in every slot"));
                }
                machines.push(machine);
            }
        }
        let readings = ProbeReadings {
            slots,
            machines,
            fetched,
            row_bytes: self.row_bytes as u32,
            checksums: self.checksums,
            measured_at,
        };
        Ok(readings.profile()?)
    }

    /// Seconds of a slot: as the worst meter of the cluster needs.
    async fn slot_seconds(&self) -> Result<f64, ProbeError> {
        let before = self.snapshot().await?;
        tokio::time::sleep(FIRST_REST).await;
        let reading: Option<EnergyReading> = match (before, self.snapshot().await?) {
            (Some(before), Some(after)) => Some(after.since(&before)),
            _ => None,
        };
        let all: Vec<Option<EnergyReading>> = self.gather(QUALITY, &reading).await?;
        let total = combine(all.iter().flatten());
        Ok(self.plan.slot_seconds(total.quality))
    }

    /// Rests with all others, or asks for rows until the time of the slot is over, at least once. None if this rank asked for
    /// nothing.
    async fn take_part(
        &self,
        slot: Slot,
        slot_time: Duration,
        owner_rows: &[u32],
    ) -> Result<Option<Fetched>, ProbeError> {
        if slot.client().is_some_and(|client| client != self.rank) {
            return Ok(None);
        }
        let until = Instant::now() + slot_time;
        let fetched = match slot {
            Slot::Idle => {
                tokio::time::sleep(slot_time).await;
                return Ok(None);
            }
            Slot::Fetch { owner, rows, .. } => {
                let lists = self.lists(owner, rows, owner_rows);
                let started = Instant::now();
                let requests = self.asker(owner, lists).fetch_until(until).await?;
                Fetched {
                    requests,
                    rows,
                    seconds: started.elapsed().as_secs_f64(),
                }
            }
            Slot::Deliver { owner, rows, .. } => self.deliver(until, owner, rows, owner_rows).await?,
            Slot::Together { rows, .. } => {
                let fewest = owner_rows.iter().copied().min().unwrap_or(rows);
                let rows = rows.min(fewest);
                let owners = (0..self.book.parts()).filter(|owner| *owner != self.rank);
                let askers = owners.map(|owner| self.asker(owner, self.lists(owner, rows, owner_rows)));
                let askers: Vec<Asker> = askers.collect();
                let started = Instant::now();
                let mut asking: JoinSet<_> = askers.into_iter().map(|asker| asker.fetch_until(until)).collect();
                let mut requests = 0u32;
                while let Some(asked) = asking.join_next().await {
                    requests = requests.saturating_add(asked??);
                }
                Fetched {
                    requests,
                    rows,
                    seconds: started.elapsed().as_secs_f64(),
                }
            }
        };
        Ok(Some(fetched))
    }

    /// Deliveries of one stream, granted ahead as in a run.
    async fn deliver(
        &self,
        until: Instant,
        owner: PartId,
        rows: u32,
        owner_rows: &[u32],
    ) -> Result<Fetched, ProbeError> {
        let lists = self.lists(owner, rows, owner_rows);
        let failed = |source| self.no_rows(owner, source);
        let mut stream = self.transport.open_stream(self.caller(), owner).await.map_err(failed)?;
        let mut granted: VecDeque<Arrival> = VecDeque::new();
        let mut delivered = 0u32;
        let started = Instant::now();
        for (step, rows) in (0u32..).zip(lists.iter().cycle()) {
            let last = Instant::now() >= until;
            let delivery = ScheduledRows {
                step,
                phase: Phase::Setup,
                rows: rows.clone(),
            };
            stream.schedule(vec![delivery], last).await.map_err(failed)?;
            let sink = Box::new(Scratch::new(rows.len() * self.row_bytes));
            granted.push_back(stream.grant(sink).await.map_err(failed)?);
            while granted.len() > if last { 0 } else { GRANTED_AHEAD } {
                if let Some(arrival) = granted.pop_front() {
                    arrival.await.map_err(failed)?;
                    delivered = delivered.saturating_add(1);
                }
            }
            if last {
                break;
            }
        }
        Ok(Fetched {
            requests: delivered,
            rows,
            seconds: started.elapsed().as_secs_f64(),
        })
    }

    fn asker(&self, owner: PartId, lists: Vec<Vec<u32>>) -> Asker {
        Asker {
            transport: Arc::clone(&self.transport),
            caller: self.caller(),
            owner,
            lists,
            row_bytes: self.row_bytes,
        }
    }

    /// Lists of rows of an owner: ascending and each once, as plans ask for them.
    fn lists(&self, owner: PartId, rows: u32, owner_rows: &[u32]) -> Vec<Vec<u32>> {
        let of_owner = owner_rows.get(usize::from(owner)).copied().unwrap_or(0);
        (0..LISTS)
            .map(|list| {
                let key = mix_words(&[ROWS, u64::from(self.rank), u64::from(owner), u64::from(rows), list]);
                sorted_sample(key, of_owner, rows)
            })
            .collect()
    }

    fn traffic_of(&self, slot: Slot, fetched: &Fetched) -> Traffic {
        let rows = u64::from(fetched.requests) * u64::from(fetched.rows);
        let is_stream = matches!(slot, Slot::Deliver { .. });
        Traffic {
            feature_requests: if is_stream { 1 } else { u64::from(fetched.requests) },
            deliveries: u64::from(fetched.requests),
            feature_rows: rows,
            feature_bytes: rows * self.row_bytes as u64,
            ..Traffic::default()
        }
    }

    fn caller(&self) -> Caller {
        Caller {
            rank: self.rank,
            period: SET_UP,
        }
    }

    /// Reads the meter, where this rank is the one that does.
    async fn snapshot(&self) -> Result<Option<EnergySnapshot>, ProbeError> {
        let Some(machine) = &self.meter else { return Ok(None) };
        let meter = Arc::clone(&machine.meter);
        Ok(Some(tokio::task::spawn_blocking(move || meter.snapshot()).await?))
    }

    async fn barrier(&self, slot: u32, step: u32) -> Result<(), ProbeError> {
        let moment = Moment {
            epoch: slot,
            step,
            period: SET_UP,
        };
        self.collective
            .all_gather(ParcelKind::Probe, moment, Vec::new())
            .await?;
        Ok(())
    }

    /// What every rank brings, by rank.
    async fn gather<T: Serialize + DeserializeOwned>(&self, step: u32, own: &T) -> Result<Vec<T>, ProbeError> {
        let moment = Moment {
            epoch: 0,
            step,
            period: SET_UP,
        };
        Ok(self
            .collective
            .all_gather_values(ParcelKind::Probe, moment, own)
            .await?)
    }

    fn no_rows(&self, owner: PartId, source: TransportError) -> ProbeError {
        ProbeError::Fetch {
            client: self.rank,
            owner,
            source,
        }
    }
}

/// Asks one owner for lists of rows in turn.
struct Asker {
    transport: Arc<dyn Transport>,
    caller: Caller,
    owner: PartId,
    lists: Vec<Vec<u32>>,
    row_bytes: usize,
}

impl Asker {
    /// One request after the other, at least one, and their number.
    async fn fetch_until(self, until: Instant) -> Result<u32, ProbeError> {
        let mut requests = 0u32;
        for rows in self.lists.iter().cycle() {
            let sink = Box::new(Scratch::new(rows.len() * self.row_bytes));
            let answered = self
                .transport
                .fetch_rows(self.caller, self.owner, rows.clone(), sink)
                .await;
            answered.map_err(|source| ProbeError::Fetch {
                client: self.caller.rank,
                owner: self.owner,
                source,
            })?;
            requests = requests.saturating_add(1);
            if Instant::now() >= until {
                break;
            }
        }
        Ok(requests)
    }
}

/// This computer and its GPUs, as far as NVML shows them. A driver may take its time.
async fn own_hardware() -> Result<Fingerprint, tokio::task::JoinError> {
    let look = || {
        let gpus = NvmlReader::load().and_then(|mut reader| reader.gpus());
        let names = gpus.map_or_else(|_| Vec::new(), |gpus| gpus.into_iter().map(|gpu| gpu.name).collect());
        Fingerprint::of_this_computer(names)
    };
    tokio::task::spawn_blocking(look).await
}

/// A probe counts as set-up.
const SET_UP: Period = Period {
    epoch: 0,
    phase: Phase::Setup,
};

/// `count` different numbers below `of`, ascending: a step of `of / count` with a draw in each.
fn sorted_sample(key: u64, of: u32, count: u32) -> Vec<u32> {
    let mut rng = CounterRng::new(key);
    let count = count.min(of);
    (0..u64::from(count))
        .map(|index| {
            let bound = |index: u64| index * u64::from(of) / u64::from(count);
            let (from, to) = (bound(index), bound(index + 1));
            (from + rng.next_u64() % (to - from)) as u32
        })
        .collect()
}

/// Takes rows as an arena does: each is copied once, to a place that is the next one's as well.
struct Scratch {
    bytes: Vec<u8>,
    filled: usize,
}

impl Scratch {
    fn new(size: usize) -> Self {
        Self {
            bytes: Vec::with_capacity(size),
            filled: size,
        }
    }
}

impl RowSink for Scratch {
    fn accept(&mut self, _first: usize, rows: &[u8]) {
        if self.bytes.len() + rows.len() > self.filled {
            self.bytes.clear();
        }
        self.bytes.extend_from_slice(rows);
    }
}
