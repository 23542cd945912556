//! What a delivery costs: the same rows fetched as K requests and as K deliveries of one stream, over one loopback.
//!
//! `cargo bench --bench deliveries` measures some K with criterion, and then all of them in turn, wall and CPU seconds of
//! both ends together, and fits `cost = bytes' share + K * slope`: the slope is the cost of a request (e_req + e_del), and
//! of a delivery (e_del). Requests, and deliveries in one column, are waited for one by one, as batches do that follow each
//! other at once; in the other column all deliveries are granted ahead, as where training takes longer than they do.
//! A stream is opened and its schedule sent for every K, within the time that is measured.

#[path = "support/mod.rs"]
mod support;

use std::hint::black_box;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput};
use greengnn::shard::{MemoryShard, PartShard};
use greengnn::transport::{Caller, Hosted, LaneClient, LaneListener, LaneSettings, MachineId, RowSink, ScheduledRows};
use greengnn_model::counters::{Period, Phase};
use greengnn_model::rng::{CounterRng, mix64};

use support::{FromHosted, cost, median};

type Failure = Box<dyn std::error::Error>;

const WIDTH: usize = 128;
const ROWS: u32 = 400_000;
/// Rows of every fetch, 4 MiB, whatever the K.
const FETCHED: usize = 8192;
const KS: [usize; 7] = [1, 4, 16, 64, 256, 1024, 4096];
/// Repetitions of the comparison, all ways in turn.
const REPEATS: usize = 21;
/// Granted deliveries that are not waited for, at most, in the column of those that are granted ahead.
const AHEAD: usize = 32;
const CALLER: Caller = Caller {
    rank: 0,
    period: Period {
        epoch: 1,
        phase: Phase::Training,
    },
};

/// A way to fetch the rows of K pieces.
#[derive(Clone, Copy)]
enum Way {
    Requests,
    Deliveries,
    GrantedAhead,
}

const WAYS: [(Way, &str); 3] = [
    (Way::Requests, "requests"),
    (Way::Deliveries, "deliveries"),
    (Way::GrantedAhead, "granted ahead"),
];

fn main() -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?;
    let ends = runtime.block_on(Ends::start())?;
    let mut criterion = Criterion::default()
        .sample_size(10)
        .warm_up_time(Duration::from_millis(300))
        .measurement_time(Duration::from_secs(2))
        .configure_from_args();
    let mut group = criterion.benchmark_group("deliveries");
    group.throughput(Throughput::Bytes((FETCHED * WIDTH * 4) as u64));
    for pieces in [1, 64, 4096].map(pieces) {
        for (way, name) in WAYS {
            group.bench_with_input(BenchmarkId::new(name, pieces.len()), &pieces, |bencher, pieces| {
                bencher.iter(|| runtime.block_on(ends.fetch(way, pieces)));
            });
        }
    }
    group.finish();
    criterion.final_summary();
    if std::env::args().any(|argument| argument == "--bench") {
        compare(|way, pieces| runtime.block_on(ends.fetch(way, pieces)));
    }
    Ok(())
}

/// The rows of a fetch in `count` pieces of equal size, each ascending.
fn pieces(count: usize) -> Vec<Vec<u32>> {
    let mut rng = CounterRng::new(mix64(count as u64));
    (0..count)
        .map(|_| {
            let mut rows: Vec<u32> = Vec::new();
            while rows.len() < FETCHED / count {
                rows.extend((rows.len()..FETCHED / count).map(|_| rng.below(ROWS)));
                rows.sort_unstable();
                rows.dedup();
            }
            rows
        })
        .collect()
}

/// An owner and a rank that asks it.
struct Ends {
    lanes: Arc<LaneClient>,
    values: Arc<Mutex<Vec<f32>>>,
    _listener: LaneListener,
}

/// Copies rows to where they belong, as a cache does.
struct Place {
    values: Arc<Mutex<Vec<f32>>>,
    start: usize,
}

impl RowSink for Place {
    fn accept(&mut self, first: usize, rows: &[u8]) {
        let mut values = self.values.lock().unwrap_or_else(PoisonError::into_inner);
        let places: &mut [u8] = bytemuck::cast_slice_mut(&mut values[self.start + first * WIDTH..]);
        places[..rows.len()].copy_from_slice(rows);
    }
}

impl Ends {
    async fn start() -> Result<Self, Failure> {
        let values = (0..ROWS as usize * WIDTH).map(|place| place as f32).collect();
        let serving = Arc::new(Hosted::new(MachineId::new("serving", 1)));
        serving.add_shard(Arc::new(PartShard::new(MemoryShard::new(0, WIDTH, values)?)));
        let settings = LaneSettings::default();
        let loopback = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), 0);
        let listener = LaneListener::bind(loopback, Arc::clone(&serving), settings.clone()).await?;
        let asking = Arc::new(Hosted::new(MachineId::new("asking", 1)));
        let tickets = FromHosted(serving, asking.machine().clone());
        let lanes = LaneClient::connect("serving", listener.local_addr(), tickets, asking, settings).await?;
        Ok(Self {
            lanes: Arc::new(lanes),
            values: Arc::new(Mutex::new(vec![0.0; FETCHED * WIDTH])),
            _listener: listener,
        })
    }

    async fn fetch(&self, way: Way, pieces: &[Vec<u32>]) {
        let fetched = match way {
            Way::Requests => self.requests(pieces).await,
            Way::Deliveries => self.deliveries(pieces, 1).await,
            Way::GrantedAhead => self.deliveries(pieces, AHEAD).await,
        };
        assert!(fetched.is_ok(), "{fetched:?}");
        black_box(&self.values);
    }

    fn place(&self, start: usize) -> Place {
        Place {
            values: Arc::clone(&self.values),
            start: start * WIDTH,
        }
    }

    async fn requests(&self, pieces: &[Vec<u32>]) -> Result<(), Failure> {
        let mut start = 0;
        for rows in pieces {
            let (lanes, rows, mut place) = (Arc::clone(&self.lanes), rows.clone(), self.place(start));
            start += rows.len();
            // On a task of its own, as the prefetcher asks: it lands while a batch trains.
            let asking = tokio::spawn(async move { lanes.fetch_rows(CALLER, 0, &rows, &mut place).await });
            asking.await??;
        }
        Ok(())
    }

    async fn deliveries(&self, pieces: &[Vec<u32>], ahead: usize) -> Result<(), Failure> {
        let mut stream = self.lanes.open_stream(CALLER, 0).await?;
        let scheduled = (0..).zip(pieces).map(|(step, rows)| ScheduledRows {
            step,
            phase: Phase::Training,
            rows: rows.clone(),
        });
        stream.schedule(scheduled.collect(), true).await?;
        let mut start = 0;
        for some in pieces.chunks(ahead) {
            let mut arrivals = Vec::with_capacity(ahead);
            for rows in some {
                arrivals.push(stream.grant(Box::new(self.place(start))).await?);
                start += rows.len();
            }
            for arrival in arrivals {
                arrival.await?;
            }
        }
        Ok(())
    }
}

/// Wall and CPU seconds by K, and the lines through them.
fn compare(mut fetch: impl FnMut(Way, &[Vec<u32>])) {
    println!("\n{:>6} {:>40} {:>40}", "", "wall us", "CPU us of both ends");
    print!("{:>6}", "K");
    (0..2).for_each(|_| WAYS.iter().for_each(|(_, name)| print!(" {name:>13}")));
    println!();
    let mut points: [Vec<(f64, f64)>; 6] = Default::default();
    for count in KS {
        let pieces = pieces(count);
        // Few pieces are fetched several times, until the clock of CPU time can see them.
        let calls = (256 / count).clamp(1, 16);
        let mut costs: [Vec<(f64, f64)>; 3] = Default::default();
        for _ in 0..REPEATS {
            for ((way, _), costs) in WAYS.iter().zip(&mut costs) {
                costs.push(cost(calls, || fetch(*way, &pieces)));
            }
        }
        let wall = costs.iter().map(|costs| median(costs.iter().map(|cost| cost.0)));
        let cpu = costs.iter().map(|costs| median(costs.iter().map(|cost| cost.1)));
        print!("{count:>6}");
        for (points, seconds) in points.iter_mut().zip(wall.chain(cpu)) {
            print!(" {:>13.0}", seconds * 1e6);
            points.push((count as f64, seconds * 1e6));
        }
        println!();
    }
    print!("{:>6}", "slope");
    points.iter().for_each(|points| print!(" {:>13.2}", slope(points)));
    println!(" us per piece");
}

/// The slope of the line with the least squared error, relative to each point, so that no K outweighs the others.
fn slope(points: &[(f64, f64)]) -> f64 {
    let weighted = |term: &dyn Fn(f64, f64) -> f64| points.iter().map(|(x, y)| term(*x, *y) / (y * y)).sum::<f64>();
    let all = weighted(&|_, _| 1.0);
    let (mean_x, mean_y) = (weighted(&|x, _| x) / all, weighted(&|_, y| y) / all);
    weighted(&|x, y| (x - mean_x) * (y - mean_y)) / weighted(&|x, _| (x - mean_x).powi(2))
}
