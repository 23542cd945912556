//! What the processes of a cluster say to each other on the control plane.
//!
//! A run, seen from here: a machine *joins* and says which parts it holds; the supervisor *assigns* ranks to machines; each
//! machine connects its lanes and is *ready*; the supervisor says *begin*; machines report every epoch and *finish*;
//! the supervisor says *stop*. Anything that goes wrong anywhere is a *failure*, and ends the run for all.

use std::collections::BTreeMap;

use greengnn_energy::clocks::ClockNews;
use greengnn_energy::profile::Profile;
use greengnn_energy::snapshot::EnergyReading;
use greengnn_energy::source::SourceReport;
use greengnn_energy::timeline::TimelinePoint;
use greengnn_model::book::{PartId, Rank};
use greengnn_model::counters::{LevelCounts, Period, Phase, Traffic};
use ractor::RpcReplyPort;
use ractor_cluster::RactorClusterMessage;
use serde::{Deserialize, Serialize};

use crate::config::TrainConfig;
use crate::report::records::StepRecord;
use crate::report::summary::Planned;
use crate::rmp::Rmp;
use crate::shard::Served as ServedCounts;
use crate::transport::MachineId;
use crate::work::{Chosen, Work};

/// Version of the messages in this file. Machines of another version are refused when they join.
pub const PROTOCOL_VERSION: u32 = 2;

/// Messages to the cluster supervisor.
#[derive(RactorClusterMessage)]
pub enum SupervisorMessage {
    /// A machine wants to take part.
    #[rpc]
    Join(Rmp<JoinRequest>, RpcReplyPort<Rmp<JoinReply>>),
    /// A machine has connected its lanes and waits for `Begin`.
    Ready(String),
    /// What some training steps took.
    Steps(Rmp<Vec<StepRecord>>),
    /// Power over time, as a machine's meter saw it.
    Timeline(String, Rmp<Vec<TimelinePoint>>),
    /// What became of the clocks of a machine's GPUs.
    Clocks(String, Rmp<ClockNews>),
    /// A machine's ranks have finished an epoch or the set-up.
    EpochDone(Rmp<EpochReport>),
    /// A piece of the trained parameters, from the machine that hosts rank 0.
    Weights(Rmp<WeightsChunk>),
    /// A machine's ranks are done.
    Finished(Rmp<FinishedReport>),
    /// What a probe measured, from the machine that hosts rank 0.
    Probed(Rmp<Box<Profile>>),
    /// What the ranks have chosen, from the machine that hosts rank 0.
    Chosen(Rmp<Box<Chosen>>),
    /// A machine cannot go on.
    Failed(Rmp<Failure>),
}

/// Messages to a machine.
#[derive(RactorClusterMessage)]
pub enum MachineMessage {
    /// Who does what. Sent once, when all machines have joined.
    Assign(Rmp<Assignment>),
    /// All machines are ready: start.
    Begin,
    /// Are you alive? Answered with the same number.
    #[rpc]
    Ping(u64, RpcReplyPort<u64>),
    /// The run is over. An empty reason means success.
    Stop(String),
}

/// Messages to the owner of a part.
#[derive(RactorClusterMessage)]
pub enum OwnerMessage {
    /// Where does this owner's machine accept lanes?
    #[rpc]
    LaneAddress(RpcReplyPort<String>),
    /// A peer asks for a lane to this owner's machine.
    #[rpc]
    OpenLane(Rmp<LaneRequest>, RpcReplyPort<Rmp<LaneReply>>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JoinRequest {
    /// What the user called the machine; unique in the cluster.
    pub name: String,
    /// Differs in every life of a machine.
    pub incarnation: u64,
    pub protocol: u32,
    pub version: String,
    pub parts: Vec<PartId>,
    /// SHA-256 of the manifest, which holds the checksum of every file of every part.
    pub manifest_sha256: String,
    pub cpu_fingerprint: String,
    /// Machines of one host have the same.
    pub boot_id: String,
    /// The process id.
    pub process: u32,
    /// Where other machines dial this one.
    pub control_address: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum JoinReply {
    Accepted,
    Refused(String),
}

/// A machine and what it does in the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineInfo {
    pub name: String,
    pub control_address: String,
    pub boot_id: String,
    /// The process id.
    pub process: u32,
    /// The ranks that it hosts, which are also the parts that it serves.
    pub ranks: Vec<Rank>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Assignment {
    pub config: Box<TrainConfig>,
    pub work: Work,
    /// All machines, by name. A machine dials those after it.
    pub machines: Vec<MachineInfo>,
    /// Counts the memberships of the run; carried in every lane's hello.
    pub membership_epoch: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LaneRequest {
    /// The machine that will connect.
    pub from: MachineId,
    pub membership_epoch: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum LaneReply {
    /// A single-use secret of 32 bytes.
    Granted(serde_bytes::ByteBuf),
    Refused(String),
}

/// What a machine says after the set-up (`epoch` is none) and after every epoch.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EpochReport {
    pub machine: String,
    pub epoch: Option<u32>,
    pub periods: Vec<PeriodReading>,
    /// After the set-up: the idle power of this machine, if it was asked for, and, which are parts of the set-up, the probe of
    /// a run that chooses its windows and the presampling of the first epoch.
    pub idle: Option<Metered>,
    pub probing: Option<Metered>,
    pub presampling: Option<Metered>,
    pub ranks: Vec<RankReport>,
    /// What this machine's owners served, by (requester, period).
    pub served: Vec<Served>,
}

/// Readings of one machine over one period.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PeriodReading {
    pub phase: Phase,
    pub wire_bytes: u64,
    pub metered: Metered,
}

/// What one machine's meter read between two times of its clock, which are given in seconds since 1970. The reading may
/// leave out a time between them: its own length is that of what it covers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Metered {
    pub started_unix_s: f64,
    pub ended_unix_s: f64,
    pub energy: EnergyReading,
}

/// What an owner counted for one requester in one period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    pub rank: Rank,
    pub period: Period,
    pub counts: ServedCounts,
}

/// What one rank did in one epoch.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RankReport {
    pub rank: Rank,
    /// Sum of the cross-entropies over all ranks, and the labelled seeds that they are of.
    pub loss_sum: f64,
    pub labelled: u64,
    /// Correct and labelled nodes over all ranks; none where nothing was evaluated.
    pub valid: Option<(u64, u64)>,
    pub test: Option<(u64, u64)>,
    pub stall_s: BTreeMap<Phase, f64>,
    pub sync_s: BTreeMap<Phase, f64>,
    /// What the rank asked for and got.
    pub traffic: BTreeMap<Phase, Traffic>,
    /// What its plans say.
    pub planned: BTreeMap<Phase, Planned>,
    /// Remote rows that its batches needed.
    pub needed_rows: BTreeMap<Phase, u64>,
    /// From which memory the batches' rows were read.
    pub levels: BTreeMap<Phase, LevelCounts>,
    pub held_rows_peak: u64,
    pub budget_rows: u64,
    /// Rows that the device keeps, and how many it may keep.
    pub device_rows: u64,
    pub device_budget_rows: u64,
    /// CPU seconds of presampling and of planning, and the bytes of the epoch's trace.
    pub presample_cpu_s: f64,
    pub plan_cpu_s: f64,
    pub trace_bytes: u64,
    /// How rows were asked for.
    pub asking: crate::planner::Asking,
}

/// A piece of the parameters as a safetensors file.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WeightsChunk {
    pub offset: u64,
    pub total: u64,
    #[serde(with = "serde_bytes")]
    pub bytes: Vec<u8>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FinishedReport {
    pub machine: String,
    pub device: String,
    pub weights_sha256: String,
    pub peak_rss_bytes: u64,
    pub peak_anon_bytes: u64,
    /// What the sources of this machine's meter gave, and why they gave no more.
    pub meters: Vec<SourceReport>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failure {
    pub machine: String,
    pub reason: String,
}
