//! Connects a machine: its lanes to all peers, its owners, and a seat with a model for every rank that it hosts.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use greengnn_energy::clocks::CudaGpu;
use greengnn_model::book::{PartitionBook, Rank};
use greengnn_model::layers::{Device, DeviceChoice, LayerError, ModelConfig, Trainable};
use greengnn_model::plan::Delivery;
use greengnn_model::policy::pinned::OnDemand;
use greengnn_model::policy::streamed::for_delivery;
use greengnn_model::policy::{Budget, BudgetError, Policy, UnknownPolicy};
use greengnn_model::row_type::RowType;
use greengnn_model::rows::RowBook;
use greengnn_model::sampling::{StepCounts, steps};
use greengnn_model::store::{PartStore, PartsManifest, StoreError};
use ractor::{Actor, ActorCell};

use crate::collective::{Collective, CollectiveError};
use crate::config::{Communication, Preaggregate, TrainConfig};
use crate::control::{self, ControlError, ControlNode};
use crate::kept_traces::{self, KeepTraceError};
use crate::owner::{Owner, OwnerTickets, StoredShard, owner_ref};
use crate::protocol::{Assignment, MachineInfo};
use crate::push_pull::PushPullSeat;
use crate::shard::PartShard;
use crate::transport::{
    Hosted, Inbox, InboxLimits, LaneClient, LaneListener, LaneSettings, MachineId, Router, Transport, TransportError,
};
use crate::work::Work;

/// Why a machine could not take its place.
#[derive(Debug, thiserror::Error)]
pub enum WiringError {
    #[error(transparent)]
    Control(#[from] ControlError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Layer(#[from] LayerError),
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    #[error(transparent)]
    Budget(#[from] BudgetError),
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    #[error(transparent)]
    Transport(#[from] TransportError),
    #[error(transparent)]
    KeepTrace(#[from] KeepTraceError),
    #[error("lanes cannot be accepted on {address}: {source}")]
    Listen { address: IpAddr, source: std::io::Error },
    #[error("the owner of part {part} could not start: {reason}")]
    Owner { part: Rank, reason: String },
    #[error("the owner of part {part} on machine {machine} grants no lane: {reason}")]
    NoLane {
        part: Rank,
        machine: String,
        reason: String,
    },
    #[error("part {part} cannot be encoded as {row_type} in {folder}: {source}")]
    Encode {
        part: Rank,
        row_type: RowType,
        folder: PathBuf,
        source: std::io::Error,
    },
    #[error("the supervisor gave this machine no rank")]
    NoRank,
    #[error("the graph hash {0:?} of the manifest is not 64 hexadecimal digits")]
    BadHash(String),
}

/// What is to be connected.
pub struct Order {
    pub assignment: Assignment,
    pub me: MachineId,
    pub ip: IpAddr,
    pub parts_folder: PathBuf,
    /// For files that go when the run ends.
    pub work_folder: PathBuf,
    pub manifest: Arc<PartsManifest>,
    pub node: Arc<ControlNode>,
    pub hosted: Arc<Hosted>,
    /// The machine supervisor, to which owners are linked.
    pub supervisor: ActorCell,
}

/// A connected machine, ready to begin.
pub struct Wiring {
    pub config: Arc<TrainConfig>,
    pub work: Work,
    pub book: Arc<PartitionBook>,
    /// Who owns which feature rows.
    pub rows: Arc<RowBook>,
    pub steps: StepCounts,
    pub graph_hash: [u8; 32],
    pub transport: Arc<dyn Transport>,
    pub policy: Arc<dyn Policy>,
    pub delivery: Delivery,
    pub preaggregate: bool,
    pub device: String,
    /// The devices of those ranks that train on a GPU.
    pub gpus: Vec<CudaGpu>,
    /// The processes of the run on this computer, this one among them.
    pub companions: Vec<u32>,
    pub budgets: BTreeMap<Rank, u32>,
    /// One per rank; taken when the run begins.
    pub seats: Vec<Seat>,
    /// Accepts the peers' lanes until the wiring is dropped.
    _lanes: LaneListener,
}

/// What one rank needs of its own.
pub struct Seat {
    pub rank: Rank,
    pub part: Arc<PartStore>,
    pub collective: Collective,
    /// Another of the same ranks, for the fill, which runs beside the trainer.
    pub filling: Collective,
    pub budget_rows: u32,
    /// The part of the budget that the device has.
    pub device_rows: u32,
    pub model: Box<dyn Trainable>,
    /// In push-pull, its columns.
    pub push_pull: Option<PushPullSeat>,
}

/// Opens the parts, starts the owners, dials the peers, and opens lanes to all of them.
pub async fn connect(order: Order) -> Result<Wiring, WiringError> {
    let Order {
        assignment,
        me,
        ip,
        parts_folder,
        work_folder,
        manifest,
        node,
        hosted,
        supervisor,
    } = order;
    let config: Arc<TrainConfig> = Arc::from(assignment.config);
    let deadline = config.deadline();
    // Ranks may be a while apart at the border of an epoch; dead machines are found by their heartbeat.
    let patience = deadline * PATIENCE;
    let machines = assignment.machines;
    let own = machines
        .iter()
        .find(|machine| machine.name == me.name)
        .ok_or(WiringError::NoRank)?;
    // No machine writes traces before all are connected.
    if let Some(folder) = &config.keep_trace {
        kept_traces::check_free(folder)?;
    }
    let policy = match config.communication {
        Communication::Pull => config.policy_parameters().policy(&config.policy)?,
        // A rank that pulls no rows keeps none and is not asked for a plan.
        Communication::PushPull => Arc::new(OnDemand),
    };
    let delivery = config.delivery(&manifest)?;
    let policy = for_delivery(policy, delivery);
    let budget: Budget = config.budget.parse()?;
    set_threads(&config, own, &machines);

    let settings = lane_settings(&config, own.ranks.len() * usize::from(manifest.book.parts()));
    hosted.set_membership_epoch(assignment.membership_epoch);
    let router = Arc::new(Router::new(Arc::clone(&hosted), deadline));
    let mut parts = BTreeMap::new();
    for rank in &own.ranks {
        let part = Arc::new(PartStore::open(&parts_folder, *rank)?);
        if config.verify {
            let part = Arc::clone(&part);
            tokio::task::spawn_blocking(move || part.verify())
                .await
                .map_err(ended)??;
        }
        hosted.add_shard(Arc::new(shard(&part, config.row_type, &work_folder).await?));
        hosted.add_inbox(Inbox::new(*rank, InboxLimits::default()));
        parts.insert(*rank, part);
    }
    let lanes = LaneListener::bind(SocketAddr::new(ip, 0), Arc::clone(&hosted), settings.clone())
        .await
        .map_err(|source| WiringError::Listen { address: ip, source })?;
    for part in &own.ranks {
        let owner = Owner {
            part: *part,
            membership_epoch: assignment.membership_epoch,
            address: lanes.local_addr(),
            hosted: Arc::clone(&hosted),
        };
        Actor::spawn_linked(Some(format!("owner-{part}@{}", me.name)), owner, (), supervisor.clone())
            .await
            .map_err(|error| WiringError::Owner {
                part: *part,
                reason: error.to_string(),
            })?;
    }

    // Machines dial those after them, so that no two dial each other.
    for peer in machines.iter().filter(|machine| machine.name > me.name) {
        node.dial(&peer.control_address, deadline).await?;
    }
    for peer in machines.iter().filter(|machine| machine.name != me.name) {
        let client = open_lanes(peer, &me, assignment.membership_epoch, &hosted, &settings).await?;
        router.attach(
            &Arc::new(client),
            peer.ranks.iter().copied(),
            peer.ranks.iter().copied(),
        );
    }

    let transport: Arc<dyn Transport> = router;
    let book = Arc::new(manifest.book.clone());
    let rows = Arc::new(RowBook::open(&parts_folder, &manifest)?);
    let mut hosts = vec![String::new(); usize::from(book.parts())];
    for machine in &machines {
        machine
            .ranks
            .iter()
            .for_each(|rank| hosts[usize::from(*rank)].clone_from(&machine.name));
    }
    let choice: DeviceChoice = config.device.parse()?;
    let row_bytes = config.row_type.row_bytes(manifest.features);
    let mut seats = Vec::new();
    let mut budgets = BTreeMap::new();
    let mut device_name = String::new();
    let mut gpus = Vec::new();
    for (local, (rank, part)) in parts.into_iter().enumerate() {
        let device = Device::probe(choice, local as u32)?;
        tracing::info!("rank {rank} trains on {device}: {}", device.reason());
        device_name = device.to_string();
        if device.cuda_index().is_some() {
            gpus.push(CudaGpu {
                device: device_name.clone(),
                uuid: device.cuda_uuid(),
            });
        }
        let model_config = model_config(&config, &manifest);
        let push_pull = match (config.communication, hosted.shard(rank)) {
            (Communication::PushPull, Some(shard)) => Some(PushPullSeat::new(&model_config, &book, shard)?),
            _ => None,
        };
        let model = build_model(device, model_config, config.seed).await?;
        let asked = budget.rows(row_bytes, rows.book().remote_nodes(rank));
        let budget_rows = policy.budget_rows(rows.book(), rank, asked);
        budgets.insert(rank, budget_rows);
        let asked = config.device_rows(&manifest, rows.book().remote_nodes(rank))?;
        let device_rows = policy.device_rows(budget_rows, asked);
        let Some(inbox) = hosted.inbox(rank) else {
            return Err(WiringError::NoRank);
        };
        let together = |inbox| Collective::new(rank, hosts.clone(), Arc::clone(&transport), inbox, patience);
        let (collective, filling) = (together(Arc::clone(&inbox))?, together(inbox)?);
        seats.push(Seat {
            rank,
            part,
            collective,
            filling,
            budget_rows,
            device_rows,
            model,
            push_pull,
        });
    }
    let preaggregate = match config.preaggregate {
        Preaggregate::On | Preaggregate::Auto => true,
        Preaggregate::Off => false,
    };
    Ok(Wiring {
        steps: step_counts(&manifest, config.batch_size),
        graph_hash: parse_hash(&manifest.graph_hash)?,
        config,
        work: assignment.work,
        book,
        rows,
        transport,
        policy,
        delivery,
        preaggregate,
        device: device_name,
        gpus,
        companions: companions(own, &machines),
        budgets,
        seats,
        _lanes: lanes,
    })
}

/// How the lanes of a machine are that serves so many streams at once.
fn lane_settings(config: &TrainConfig, streams: usize) -> LaneSettings {
    let defaults = LaneSettings::default();
    LaneSettings {
        deadline: config.deadline(),
        row_type: config.row_type,
        checksums: config.verify,
        // A stream has a connection; that of the epoch before may not have been given back when the next one opens.
        max_connections: defaults.max_connections + 2 * streams,
        ..defaults
    }
}

/// A rank that waits for its own batch may take so many deadlines, and the others wait for it.
pub const PATIENCE: u32 = 10;

/// Lanes to `peer`, with tickets from the owner of one of its parts.
async fn open_lanes(
    peer: &MachineInfo,
    me: &MachineId,
    membership_epoch: u64,
    hosted: &Arc<Hosted>,
    settings: &LaneSettings,
) -> Result<LaneClient, WiringError> {
    let Some(part) = peer.ranks.first().copied() else {
        return Err(WiringError::NoRank);
    };
    let who = format!("the owner of part {part} on machine {}", peer.name);
    let cell = control::wait_for_member(&control::owner_group(part), &who, settings.deadline).await?;
    let tickets = OwnerTickets {
        owner: owner_ref(cell),
        from: me.clone(),
        membership_epoch,
        deadline: settings.deadline,
    };
    let refused = |reason| WiringError::NoLane {
        part,
        machine: peer.name.clone(),
        reason,
    };
    let address = tickets.address().await.map_err(refused)?;
    Ok(LaneClient::connect(
        peer.name.clone(),
        address,
        tickets,
        Arc::clone(hosted),
        settings.clone(),
    )
    .await?)
}

/// The part as it is served. Taking room on disk may take a while where the file system has to write it.
async fn shard(part: &Arc<PartStore>, row_type: RowType, folder: &Path) -> Result<PartShard, WiringError> {
    let (stored, within) = (StoredShard(Arc::clone(part)), folder.to_owned());
    let shard = tokio::task::spawn_blocking(move || PartShard::encoded(stored, row_type, &within)).await;
    shard.map_err(ended)?.map_err(|source| WiringError::Encode {
        part: part.part(),
        row_type,
        folder: folder.to_owned(),
        source,
    })
}

/// A blocking task that ended before its work was done.
fn ended(error: tokio::task::JoinError) -> WiringError {
    WiringError::Layer(LayerError::Backend(error.to_string()))
}

/// Builds the model off the runtime's threads: a GPU back end takes its time.
async fn build_model(device: Device, model: ModelConfig, seed: u64) -> Result<Box<dyn Trainable>, WiringError> {
    let built = tokio::task::spawn_blocking(move || greengnn_model::layers::build(&device, &model, seed)).await;
    Ok(built.map_err(ended)??)
}

fn model_config(config: &TrainConfig, manifest: &PartsManifest) -> ModelConfig {
    ModelConfig {
        features: manifest.features,
        hidden: config.hidden,
        layers: config.fanouts.len(),
        classes: manifest.classes as usize,
        dropout: config.dropout,
        learning_rate: config.lr,
    }
}

/// Steps of every purpose: the maximum over ranks.
pub fn step_counts(manifest: &PartsManifest, batch_size: u32) -> StepCounts {
    let of = |seeds: fn(&greengnn_model::store::PartSummary) -> u32| {
        let counts: Vec<u32> = manifest.parts.iter().map(seeds).collect();
        steps(&counts, batch_size)
    };
    StepCounts {
        train: of(|part| part.train),
        valid: of(|part| part.valid),
        test: of(|part| part.test),
    }
}

/// Compute threads of this process: what was asked for, or this machine's share of the host's cores.
fn set_threads(config: &TrainConfig, own: &MachineInfo, machines: &[MachineInfo]) {
    let on_this_host = companions(own, machines).len().max(1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads = config
        .threads
        .map_or_else(|| (cores / on_this_host).max(1), |threads| threads as usize);
    if let Err(error) = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global() {
        tracing::debug!("the compute threads of this process were set before: {error}");
    }
}

/// The processes of the run on this computer.
fn companions(own: &MachineInfo, machines: &[MachineInfo]) -> Vec<u32> {
    let here = machines.iter().filter(|machine| machine.boot_id == own.boot_id);
    here.map(|machine| machine.process).collect()
}

/// A hash of 64 hexadecimal digits.
pub fn parse_hash(text: &str) -> Result<[u8; 32], WiringError> {
    let bad = || WiringError::BadHash(text.to_owned());
    if text.len() != 64 || !text.is_ascii() {
        return Err(bad());
    }
    let mut hash = [0; 32];
    for (byte, digits) in hash.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
        let digits = std::str::from_utf8(digits).map_err(|_| bad())?;
        *byte = u8::from_str_radix(digits, 16).map_err(|_| bad())?;
    }
    Ok(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verified_runs_have_checksums_on_their_lanes() {
        for verify in [false, true] {
            let config = TrainConfig {
                verify,
                ..TrainConfig::default()
            };
            assert_eq!(lane_settings(&config, 1).checksums, verify);
        }
    }
}
