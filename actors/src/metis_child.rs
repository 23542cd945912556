//! METIS in a child process.
//!
//! METIS is C code that ends its process when memory runs out, and a crash in it would take everything with it. So the
//! program runs itself once more with a hidden subcommand: the graph is handed over by its path, the assignment comes
//! back in a file, and whatever happens to the child is an error message here. The child dies with its parent.

use std::ffi::OsString;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use greengnn_model::book::PartId;
use greengnn_model::npy::{ArrayWriter, NpyError};
use greengnn_model::partition::{
    self, Adjacency, Links, NodeLoads, PartitionError, assignment_from_file, check_metis_size,
};
use greengnn_model::rng::Purpose;
use greengnn_model::store::{GraphManifest, GraphStore, StoreError};

use crate::lifetime::Scratch;

/// The hidden subcommand.
pub const SUBCOMMAND: &str = "metis-child";

/// How long METIS may take unless told otherwise. It takes a minute for a hundred million edges.
pub const DEFAULT_TIME_LIMIT: Duration = Duration::from_secs(4 * 3600);
/// How often the parent looks whether the child has ended.
const POLL: Duration = Duration::from_millis(10);
/// How much of what the child says about its failure is kept.
const LONGEST_COMPLAINT: u64 = 4096;

/// Arguments of the hidden subcommand.
#[derive(Debug, clap::Args)]
pub struct MetisChildArgs {
    /// Graph folder.
    #[arg(long)]
    pub graph: PathBuf,
    /// Number of parts.
    #[arg(long)]
    pub parts: PartId,
    /// Seed of METIS.
    #[arg(long)]
    pub seed: u64,
    /// Cut clusters of nodes instead of nodes.
    #[arg(long)]
    pub clusters: bool,
    /// File that the assignment is written to, a `.npy` of one number per node. Its folder also takes what else must be
    /// on disk meanwhile.
    #[arg(long)]
    pub result: PathBuf,
    /// Process id of the parent, without which the child ends.
    #[arg(long)]
    pub parent: u32,
}

/// Why there is no assignment from the child.
#[derive(Debug, thiserror::Error)]
pub enum MetisChildError {
    #[error("cannot make a temporary folder for the result of METIS")]
    Folder(#[source] std::io::Error),
    #[error("cannot start {program} to run METIS")]
    Start { program: PathBuf, source: std::io::Error },
    #[error("cannot wait for the METIS process")]
    Wait(#[source] std::io::Error),
    #[error("the METIS process did not end within {limit:?} and was stopped; cut with `--method stream` instead")]
    TooSlow { limit: Duration },
    #[error("the METIS process failed ({status}){complaint}")]
    Failed { status: String, complaint: String },
    #[error("the METIS process ended well but left no usable result")]
    Result(#[source] PartitionError),
    #[error(transparent)]
    Partition(#[from] PartitionError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Npy(#[from] NpyError),
    #[error("cannot tie the METIS process to its parent")]
    Tie(#[source] std::io::Error),
}

/// How the child is started.
#[derive(Clone, Debug)]
pub struct MetisProgram {
    /// A program that has the hidden subcommand [`SUBCOMMAND`].
    pub program: PathBuf,
    /// What comes before the arguments of [`MetisChildArgs`].
    pub first_arguments: Vec<OsString>,
    pub time_limit: Duration,
}

impl MetisProgram {
    /// The program that is running now.
    pub fn current() -> std::io::Result<Self> {
        Ok(Self::of(std::env::current_exe()?))
    }

    /// The program `greengnn` at `path`, for those who embed this library in a program of their own.
    pub fn of(path: PathBuf) -> Self {
        Self {
            program: path,
            first_arguments: vec![SUBCOMMAND.into()],
            time_limit: DEFAULT_TIME_LIMIT,
        }
    }

    /// Cuts the graph folder `graph` into `parts` by METIS, and blocks until that is done.
    ///
    /// # Errors
    /// A graph that METIS cannot hold is refused before anything is started. A child that fails, crashes or runs longer
    /// than the limit is an error that says so, with the end of what it wrote to its standard error.
    pub fn assign(&self, graph: &Path, parts: PartId, seed: u64) -> Result<Vec<PartId>, MetisChildError> {
        let manifest = GraphManifest::open(graph)?;
        check_metis_size(u64::from(manifest.nodes), manifest.edges)?;
        let folder = Scratch::new().map_err(MetisChildError::Folder)?;
        self.run(graph, parts, seed, false, folder.path())
    }

    /// As [`assign`](Self::assign), but cuts clusters of nodes, of which METIS can hold many more
    /// ([`partition::cluster_assignment`]). Of a directed graph all edges are copied into the folder `scratch`, 4 bytes
    /// each, for as long as this takes.
    ///
    /// # Errors
    /// As [`assign`](Self::assign), except that a graph of too many clusters is refused by the child.
    pub fn assign_clusters(
        &self,
        graph: &Path,
        parts: PartId,
        seed: u64,
        scratch: &Path,
    ) -> Result<Vec<PartId>, MetisChildError> {
        self.run(graph, parts, seed, true, scratch)
    }

    /// Starts the child, which may use `folder`, and reads the result from there.
    fn run(
        &self,
        graph: &Path,
        parts: PartId,
        seed: u64,
        clusters: bool,
        folder: &Path,
    ) -> Result<Vec<PartId>, MetisChildError> {
        let nodes = GraphManifest::open(graph)?.nodes;
        let result = folder.join("assignment.npy");
        self.wait_for(graph, parts, seed, clusters, &result)?;
        assignment_from_file(&result, nodes, parts).map_err(MetisChildError::Result)
    }

    fn wait_for(
        &self,
        graph: &Path,
        parts: PartId,
        seed: u64,
        clusters: bool,
        result: &Path,
    ) -> Result<(), MetisChildError> {
        let child = Command::new(&self.program)
            .args(&self.first_arguments)
            .arg("--graph")
            .arg(graph)
            .args(["--parts", &parts.to_string(), "--seed", &seed.to_string()])
            .arg("--result")
            .arg(result)
            .args(["--parent", &std::process::id().to_string()])
            .args(clusters.then_some("--clusters"))
            // Its complaints become part of a sentence, in which a list of stack frames has no place.
            .env("RUST_BACKTRACE", "0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|source| MetisChildError::Start {
                program: self.program.clone(),
                source,
            })?;
        let (status, complaint) = Running { child }.outcome(self.time_limit)?;
        if status.success() {
            return Ok(());
        }
        Err(MetisChildError::Failed {
            status: describe(status),
            complaint,
        })
    }
}

/// A child that is stopped and reaped when nobody waits for it any more.
struct Running {
    child: Child,
}

impl Running {
    /// Waits for the end; also gives the first of what the child wrote to its standard error.
    fn outcome(mut self, limit: Duration) -> Result<(ExitStatus, String), MetisChildError> {
        let stderr = self.child.stderr.take();
        // Reads beside the wait: a child that says much would otherwise block on a full pipe for ever.
        let listener = std::thread::spawn(move || stderr.map(listen).unwrap_or_default());
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().map_err(MetisChildError::Wait)? {
                break status;
            }
            if start.elapsed() >= limit {
                return Err(MetisChildError::TooSlow { limit });
            }
            std::thread::sleep(POLL);
        };
        let complaint = listener.join().unwrap_or_default();
        Ok((status, complaint))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only when the child has ended and been reaped, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What was said, as a text that continues a sentence: the last error, or else all. Of a flood only the first
/// [`LONGEST_COMPLAINT`] bytes are kept.
fn listen(mut stderr: impl Read) -> String {
    let mut start = Vec::new();
    let _ = stderr.by_ref().take(LONGEST_COMPLAINT).read_to_end(&mut start);
    let _ = std::io::copy(&mut stderr, &mut std::io::sink());
    let text = String::from_utf8_lossy(&start);
    let said = text.rsplit_once("error: ").map_or(&*text, |(_, last)| last).trim();
    if said.is_empty() {
        String::new()
    } else {
        format!(": {said}")
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(signal), _) if signal == libc::SIGKILL => "killed, which happens when memory runs out".to_owned(),
        (Some(signal), _) => format!("it crashed with signal {signal}"),
        (None, Some(code)) => format!("exit code {code}"),
        (None, None) => status.to_string(),
    }
}

/// The child's side: reads the graph, runs METIS and writes the assignment.
pub fn run_child(args: &MetisChildArgs) -> Result<(), MetisChildError> {
    die_with_parent(args.parent)?;
    let graph = GraphStore::open(&args.graph)?;
    let train = graph.split(Purpose::Train);
    let assignment = if args.clusters {
        let folder = args.result.parent().unwrap_or(Path::new("."));
        let links = links_of(&graph, folder)?;
        partition::cluster_assignment(&links, train, args.parts, args.seed)?
    } else {
        let adjacency = Adjacency::symmetric(graph.topology())?;
        let loads = NodeLoads::new(graph.topology(), train);
        partition::metis_assignment(&adjacency, &loads, args.parts, args.seed)?
    };
    let mut writer = ArrayWriter::<u16>::create(&args.result, &[assignment.len()])?;
    writer.write(&assignment)?;
    writer.finish()?;
    Ok(())
}

/// The edges of a graph folder from both ends; those of a directed graph take room in the folder `scratch`.
pub(crate) fn links_of<'a>(graph: &'a GraphStore, scratch: &Path) -> Result<Links<'a>, PartitionError> {
    if graph.manifest().directed {
        Links::directed(graph.topology(), scratch)
    } else {
        Links::symmetric(graph.topology())
    }
}

/// Has the kernel kill this process when its parent ends, however that ends.
fn die_with_parent(parent: u32) -> Result<(), MetisChildError> {
    // SAFETY: the call takes plain numbers and touches no memory of this process.
    let failed = unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong) } != 0;
    if failed {
        return Err(MetisChildError::Tie(std::io::Error::last_os_error()));
    }
    // The parent may have ended before the call, and then nobody would tell.
    if std::os::unix::process::parent_id() != parent {
        return Err(MetisChildError::Tie(std::io::Error::other("the parent has ended")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
