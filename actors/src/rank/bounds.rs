//! How far sampling, fetching and training may be apart. Every queue here is far longer than it is in a run, so that what
//! holds the stages back is the permits alone.

use std::path::Path;
use std::time::Duration;

use greengnn_model::plan::{Delivery, DeviceRows};
use greengnn_model::policy::policy_by_name;
use greengnn_model::row_type::RowType;
use greengnn_model::store::PartsManifest;
use greengnn_model::synth::SynthSpec;

use super::*;
use crate::residency::Residency;
use crate::transport::{Hosted, MachineId, Router};
use crate::wiring::step_counts;

const AMPLE: usize = 64;
const EPOCHS: u32 = 6;
/// What must not come does not come in this time; what must come has all the time of the test.
const A_WHILE: Duration = Duration::from_millis(300);

/// One rank of a graph of one part, which needs no peer.
struct Pipeline {
    presampler: Presampler,
    planner: RankPlanner,
    prefetcher: Prefetcher,
}

impl Pipeline {
    fn new(folder: &Path, runtime: &tokio::runtime::Runtime) -> Self {
        let parts = folder.join("parts");
        SynthSpec::tiny(200).write_parts(&parts, 1).unwrap();
        let manifest = PartsManifest::open(&parts).unwrap();
        let part = Arc::new(PartStore::open(&parts, 0).unwrap());
        let rows = Arc::new(RowBook::open(&parts, &manifest).unwrap());
        let config = Arc::new(TrainConfig {
            epochs: EPOCHS,
            batch_size: 10,
            fanouts: vec![3, 2],
            ..TrainConfig::default()
        });
        let hosted = Arc::new(Hosted::new(MachineId::new("alone", 1)));
        let transport: Arc<dyn Transport> = Arc::new(Router::new(hosted, Duration::from_secs(20)));
        let permits = Arc::new(Semaphore::new(EPOCHS_AHEAD));
        let width = manifest.features;
        Self {
            planner: RankPlanner {
                rank: 0,
                policy: policy_by_name("on-demand").unwrap(),
                book: Arc::clone(rows.book()),
                budget_rows: 0,
                asking: Asking {
                    window: 2,
                    delivery: Delivery::Windowed,
                },
                tuner: None,
                tell_choice: Box::new(|_| ()),
                row_type: RowType::F32,
                epochs: EPOCHS,
                state: CacheState::default(),
            },
            prefetcher: Prefetcher {
                rank: 0,
                rows: Arc::clone(&rows),
                part: Arc::clone(&part),
                transport: Arc::clone(&transport),
                residency: Arc::new(Residency::new(DeviceRows::default(), 0)),
                arena: Arc::new(RowArena::for_run(0, RowType::F32.row_bytes(width), false)),
                width,
                row_type: RowType::F32,
                preaggregate: true,
                verify: false,
                ahead: Arc::new(Semaphore::new(1 + config.ahead as usize)),
                epochs: Arc::clone(&permits),
                trained: TrainedEpochs::default(),
                buffers: Arc::default(),
            },
            presampler: Presampler {
                rank: 0,
                steps: step_counts(&manifest, config.batch_size),
                config,
                book: Arc::new(manifest.book),
                rows,
                part,
                graph_hash: [0; 32],
                transport,
                runtime: runtime.handle().clone(),
                folder: folder.join("trace"),
                permits,
                cancelled: Arc::default(),
            },
        }
    }
}

#[test]
fn no_epoch_is_sampled_before_one_of_those_ahead_is_done() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let presampler = Pipeline::new(folder.path(), &runtime).presampler;
    let (permits, traces_folder) = (Arc::clone(&presampler.permits), presampler.folder.clone());
    let (sender, mut traces) = mpsc::channel(AMPLE);
    let sampling = std::thread::spawn(move || presampler.run(sender, || ()));
    let mut kept = Vec::new();
    for epoch in 0..EPOCHS {
        let trace = traces.blocking_recv().unwrap();
        assert_eq!(trace.epoch, epoch);
        kept.push(trace);
        let next = epoch + 1;
        if next as usize >= EPOCHS_AHEAD && next < EPOCHS {
            std::thread::sleep(A_WHILE);
            assert!(traces.try_recv().is_err(), "epoch {next} was sampled too early");
            assert!(!traces_folder.join(format!("epoch-{next}")).exists());
            permits.add_permits(1);
        }
    }
    assert!(traces.blocking_recv().is_none());
    sampling.join().unwrap().unwrap();
}

#[test]
fn no_batch_is_assembled_before_the_one_that_trains_gives_its_place() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let Pipeline {
        presampler,
        planner,
        prefetcher,
    } = Pipeline::new(folder.path(), &runtime);
    let (ahead, permits) = (Arc::clone(&prefetcher.ahead), Arc::clone(&presampler.permits));
    let steps = presampler.steps.train + presampler.steps.valid;
    let (trace_sender, traces) = mpsc::channel(AMPLE);
    let (plan_sender, plans) = mpsc::channel(AMPLE);
    let (batch_sender, mut batches) = mpsc::channel(AMPLE);
    let sampling = std::thread::spawn(move || presampler.run(trace_sender, || ()));
    let planning = std::thread::spawn(move || planner.run(None, traces, plan_sender));
    let fetching = runtime.spawn(prefetcher.run(0, plans, batch_sender));

    let Some(Prefetched::Epoch(trace)) = batches.blocking_recv() else {
        panic!("the first batch has no epoch")
    };
    assert_eq!(trace.epoch, 0);
    for step in 0..steps {
        let Some(Prefetched::Batch(batch)) = batches.blocking_recv() else {
            panic!("no batch for step {step}")
        };
        assert_eq!(batch.step, step);
        // The batch that trains now and the one ahead of it have the two places.
        if step == 1 {
            std::thread::sleep(A_WHILE);
            assert!(batches.try_recv().is_err(), "a second batch was assembled ahead");
        }
        if step >= 1 {
            ahead.add_permits(1);
        }
    }
    permits.close();
    ahead.close();
    drop(batches);
    fetching.abort();
    let _ = runtime.block_on(fetching);
    planning.join().unwrap();
    sampling.join().unwrap().unwrap();
}
