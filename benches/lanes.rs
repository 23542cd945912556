//! Lanes against plain framing on one loopback: fetches of 512-byte rows, and the latency of a tiny request.
//!
//! `cargo bench --bench lanes` measures both with criterion, and then once more in turn, with the CPU seconds that both
//! ends together take per gigabyte. The plain side is the least that would do: length, ids, length, rows, with buffers
//! that are reused, one request at a time, no checks, no deadlines, no counting.

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use criterion::{BenchmarkId, Criterion, Throughput};
use greengnn::shard::{MemoryShard, PartShard};
use greengnn::transport::{
    BoxFuture, Caller, Hosted, LaneClient, LaneListener, LaneSettings, MachineId, RowSink, Ticket, TicketSource,
};
use greengnn_model::counters::{Period, Phase};
use greengnn_model::rng::{CounterRng, mix64};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::Runtime;

type Failure = Box<dyn std::error::Error>;

const WIDTH: usize = 128;
const ROWS: u32 = 400_000;
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// Rows of one request: 512 B, 1 MiB, 16 MiB, 64 MiB.
const SIZES: [usize; 4] = [1, 2 << 10, 32 << 10, 128 << 10];
/// Repetitions of the comparison, lanes and plain framing in turn.
const REPEATS: usize = 15;

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let mut ends = runtime.block_on(Ends::start())?;
    let mut criterion = Criterion::default()
        .sample_size(15)
        .warm_up_time(Duration::from_millis(500))
        .measurement_time(Duration::from_secs(4))
        .configure_from_args();
    let mut group = criterion.benchmark_group("lanes");
    for size in SIZES {
        let rows = random_rows(size);
        group.throughput(Throughput::Bytes((size * WIDTH * 4) as u64));
        group.bench_with_input(BenchmarkId::new("lane", size), &rows, |bencher, rows| {
            bencher.iter(|| runtime.block_on(ends.over_lane(rows)));
        });
        group.bench_with_input(BenchmarkId::new("plain", size), &rows, |bencher, rows| {
            bencher.iter(|| runtime.block_on(ends.over_plain(rows)));
        });
    }
    group.finish();
    criterion.final_summary();
    if std::env::args().any(|argument| argument == "--bench") {
        compare(&runtime, &mut ends);
    }
    Ok(())
}

/// Both servers and a client of each.
struct Ends {
    lanes: LaneClient,
    plain: TcpStream,
    ids: Vec<u8>,
    values: Vec<f32>,
    _listener: LaneListener,
}

struct FromHosted(Arc<Hosted>, MachineId);

impl TicketSource for FromHosted {
    fn next_ticket(&self) -> BoxFuture<'_, Result<Ticket, String>> {
        Box::pin(async { self.0.tickets().issue(&self.1).map_err(|error| error.to_string()) })
    }
}

/// Copies rows to where they belong, as a cache does.
struct Place<'a>(&'a mut [f32]);

impl RowSink for Place<'_> {
    fn accept(&mut self, first: usize, rows: &[u8]) {
        let place: &mut [u8] = bytemuck::cast_slice_mut(&mut self.0[first * WIDTH..]);
        place[..rows.len()].copy_from_slice(rows);
    }
}

impl Ends {
    async fn start() -> Result<Self, Failure> {
        let values = (0..ROWS as usize * WIDTH).map(|place| place as f32).collect();
        let shard = Arc::new(PartShard::new(MemoryShard::new(0, WIDTH, values)?));
        let serving = Arc::new(Hosted::new(MachineId::new("serving", 1)));
        serving.add_shard(Arc::clone(&shard));
        let settings = LaneSettings {
            checksums: std::env::var_os("LANES_CHECKSUMS").is_some(),
            ..LaneSettings::default()
        };
        let listener = LaneListener::bind(LOOPBACK, Arc::clone(&serving), settings.clone()).await?;
        let asking = Arc::new(Hosted::new(MachineId::new("asking", 1)));
        let tickets = FromHosted(serving, asking.machine().clone());
        let lanes = LaneClient::connect("serving", listener.local_addr(), tickets, asking, settings).await?;

        let plain = TcpListener::bind(LOOPBACK).await?;
        let address = plain.local_addr()?;
        tokio::spawn(async move {
            let (stream, _) = plain.accept().await?;
            serve_plain(stream, shard).await
        });
        let plain = TcpStream::connect(address).await?;
        plain.set_nodelay(true)?;
        Ok(Self {
            lanes,
            plain,
            ids: Vec::new(),
            values: vec![0.0; SIZES[SIZES.len() - 1] * WIDTH],
            _listener: listener,
        })
    }

    async fn over_lane(&mut self, rows: &[u32]) {
        let caller = Caller {
            rank: 0,
            period: Period {
                epoch: 1,
                phase: Phase::Training,
            },
        };
        let fetched = self
            .lanes
            .fetch_rows(caller, 0, rows, &mut Place(&mut self.values))
            .await;
        assert!(fetched.is_ok(), "{fetched:?}");
        black_box(&self.values);
    }

    async fn over_plain(&mut self, rows: &[u32]) {
        let fetched = self.ask_plain(rows).await;
        assert!(fetched.is_ok(), "{fetched:?}");
        black_box(&self.values);
    }

    async fn ask_plain(&mut self, rows: &[u32]) -> std::io::Result<()> {
        self.ids.clear();
        self.ids.extend((rows.len() as u32).to_le_bytes());
        self.ids.extend(rows.iter().flat_map(|row| row.to_le_bytes()));
        self.plain.write_all(&self.ids).await?;
        let length = self.plain.read_u64_le().await? as usize;
        let bytes: &mut [u8] = bytemuck::cast_slice_mut(&mut self.values[..length / 4]);
        self.plain.read_exact(bytes).await?;
        Ok(())
    }
}

async fn serve_plain(mut stream: TcpStream, shard: Arc<PartShard>) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let (mut ids, mut reply) = (Vec::new(), Vec::new());
    loop {
        let count = stream.read_u32_le().await? as usize;
        ids.resize(count, 0u32);
        stream.read_exact(bytemuck::cast_slice_mut(&mut ids)).await?;
        reply.clear();
        reply.extend((count as u64 * WIDTH as u64 * 4).to_le_bytes());
        for row in &ids {
            reply.extend_from_slice(shard.encoded_row(*row));
        }
        stream.write_all(&reply).await?;
    }
}

fn random_rows(count: usize) -> Vec<u32> {
    let mut rng = CounterRng::new(mix64(count as u64));
    (0..count).map(|_| rng.below(ROWS)).collect()
}

/// Wall and CPU seconds per fetch, by size, lanes and plain framing in turn.
fn compare(runtime: &Runtime, ends: &mut Ends) {
    println!(
        "\n{:>10} {:>12} {:>12} {:>7} {:>14} {:>14}",
        "bytes", "lane", "plain", "ratio", "lane CPU s/GB", "plain CPU s/GB"
    );
    for size in SIZES {
        let rows = random_rows(size);
        // Tiny requests are repeated until the clock of CPU time can see them.
        let calls = (4096 / size).max(1);
        let (mut lane, mut plain) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            lane.push(cost(calls, || runtime.block_on(ends.over_lane(&rows))));
            plain.push(cost(calls, || runtime.block_on(ends.over_plain(&rows))));
        }
        let gigabytes = (size * WIDTH * 4) as f64 / 1e9;
        let wall = |costs: &[(f64, f64)]| median(costs.iter().map(|cost| cost.0));
        let cpu = |costs: &[(f64, f64)]| median(costs.iter().map(|cost| cost.1)) / gigabytes;
        println!(
            "{:>10} {:>9.1} us {:>9.1} us {:>7.2} {:>14.2} {:>14.2}",
            size * WIDTH * 4,
            wall(&lane) * 1e6,
            wall(&plain) * 1e6,
            wall(&plain) / wall(&lane),
            cpu(&lane),
            cpu(&plain)
        );
    }
}

/// Wall and CPU seconds of one of `calls` calls.
fn cost(calls: usize, mut call: impl FnMut()) -> (f64, f64) {
    let (started, cpu) = (Instant::now(), cpu_seconds());
    for _ in 0..calls {
        call();
    }
    let calls = calls as f64;
    (started.elapsed().as_secs_f64() / calls, (cpu_seconds() - cpu) / calls)
}

/// CPU seconds of this process so far, user and system.
fn cpu_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec, which is all that the call writes.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}
