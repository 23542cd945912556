use greengnn_model::counters::Phase;
use proptest::prelude::*;
use tokio::task::JoinSet;

use super::*;
use crate::transport::testing::{Machine, ranks, settings};
use crate::transport::{BoxFuture, Caller, LaneSettings, RowSink, RowStream};
use greengnn_model::book::PartId;
use greengnn_model::sampling::{NeighborQuery, NeighborReply};

const DEADLINE: Duration = Duration::from_secs(20);

fn moment(step: u32) -> Moment {
    Moment {
        epoch: 1,
        step,
        period: Period {
            epoch: 1,
            phase: Phase::Training,
        },
    }
}

/// One collective per rank, rank `r` on machine `placement[r]`.
pub(crate) async fn collectives(placement: &[usize], settings: &LaneSettings) -> (Vec<Machine>, Vec<Arc<Collective>>) {
    let names: Vec<String> = placement.iter().map(|machine| format!("machine-{machine}")).collect();
    let (machines, ranks) = ranks(placement, settings).await;
    let collectives = ranks.into_iter().enumerate().map(|(rank, (router, inbox))| {
        let collective = Collective::new(rank as Rank, names.clone(), router, inbox, DEADLINE);
        Arc::new(collective.unwrap())
    });
    (machines, collectives.collect())
}

/// Runs one operation at all ranks at once; results by rank.
async fn at_all<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
    collectives: &[Arc<Collective>],
    operation: impl Fn(Arc<Collective>) -> F,
) -> Vec<T> {
    let mut running = JoinSet::new();
    for collective in collectives {
        let (rank, future) = (collective.rank(), operation(Arc::clone(collective)));
        running.spawn(async move { (rank, future.await) });
    }
    let mut results = running.join_all().await;
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

/// The sum in the order of ranks, on one thread.
fn serial_sum(vectors: &[Vec<f32>]) -> Vec<f32> {
    let mut sum = vectors[0].clone();
    for vector in &vectors[1..] {
        sum.iter_mut().zip(vector).for_each(|(sum, value)| *sum += value);
    }
    sum
}

async fn reduce(placement: &[usize], settings: &LaneSettings, vectors: &[Vec<f32>]) -> Vec<Vec<f32>> {
    let (_machines, collectives) = collectives(placement, settings).await;
    let vectors = vectors.to_vec();
    let sums = at_all(&collectives, move |collective| {
        let mut values = vectors[usize::from(collective.rank())].clone();
        async move {
            collective.all_reduce_sum(moment(1), &mut values).await?;
            Ok::<_, CollectiveError>(values)
        }
    });
    sums.await.into_iter().map(Result::unwrap).collect()
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}

/// Numbers of very different sizes, so that every other order of summation gives other bits.
fn value() -> impl Strategy<Value = f32> {
    (-1.0f32..1.0, -20i32..20).prop_map(|(value, exponent)| value * 2f32.powi(exponent))
}

fn vectors() -> impl Strategy<Value = Vec<Vec<f32>>> {
    (1usize..6, 0usize..40)
        .prop_flat_map(|(ranks, length)| prop::collection::vec(prop::collection::vec(value(), length), ranks))
}

#[test]
fn values_come_by_rank_and_what_is_none_is_named() {
    runtime().block_on(async {
        let (_machines, collectives) = collectives(&[0, 1, 1], &settings()).await;
        let values = at_all(&collectives, |collective| async move {
            let own = (collective.rank(), Some("own".to_owned()));
            collective.all_gather_values(ParcelKind::Choice, moment(1), &own).await
        });
        let expected: Vec<(Rank, Option<String>)> = (0..3).map(|rank| (rank, Some("own".to_owned()))).collect();
        assert!(values.await.into_iter().all(|values| values.unwrap() == expected));
        let damaged = at_all(&collectives, |collective| async move {
            let at = moment(2);
            if collective.rank() == 1 {
                // Another length than its bytes have.
                let sent = collective.all_gather(ParcelKind::Choice, at, vec![0xc4, 9]).await;
                return sent.map(|_| Vec::new());
            }
            collective.all_gather_values(ParcelKind::Choice, at, &7u32).await
        });
        let error = damaged.await.swap_remove(0).unwrap_err().to_string();
        assert!(error.contains("the Choice of rank 1 on machine-1 cannot be"), "{error}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn sums_have_the_bits_of_a_serial_sum_wherever_ranks_run(
        vectors in vectors(), machines in 1usize..4, checksums in any::<bool>(),
    ) {
        let expected = bits(&serial_sum(&vectors));
        let settings = LaneSettings { checksums, ..settings() };
        let together = vec![0; vectors.len()];
        let apart: Vec<usize> = (0..vectors.len()).map(|rank| rank % machines).collect();
        for placement in [together, apart] {
            for sum in runtime().block_on(reduce(&placement, &settings, &vectors)) {
                prop_assert_eq!(bits(&sum), expected.clone());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_vectors_cross_lanes_and_only_lanes_are_charged() {
    let vectors: Vec<Vec<f32>> = (0..3)
        .map(|rank| (0..300_001).map(|place| (place * (rank + 1)) as f32 / 7.0).collect())
        .collect();
    let placement = [0, 0, 1];
    let (machines, collectives) = collectives(&placement, &settings()).await;
    let greetings: u64 = machines
        .iter()
        .map(|machine| machine.hosted.wire().written_total())
        .sum();
    let given = vectors.clone();
    let sums = at_all(&collectives, move |collective| {
        let mut values = given[usize::from(collective.rank())].clone();
        async move { collective.all_reduce_sum(moment(1), &mut values).await.map(|()| values) }
    });
    for sum in sums.await {
        assert_eq!(bits(&sum.unwrap()), bits(&serial_sum(&vectors)));
    }
    let total: u64 = machines
        .iter()
        .map(|machine| machine.hosted.wire().written_total())
        .sum();
    // Two of the three pairs of ranks are on two machines; each carries a slice and a sum both ways, of 100,000 values
    // (one rank 100,001), with 42 bytes of framing.
    let framing = 8 * 42;
    let values = (total - greetings - framing) as f64 / 4.0;
    assert!((values - 800_000.0).abs() <= 8.0, "{values} values crossed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn negative_zeros_survive_the_sum() {
    let sums = reduce(&[0, 1], &settings(), &[vec![-0.0; 3], vec![-0.0; 3]]).await;
    assert_eq!(bits(&sums[0]), bits(&[-0.0; 3]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_steps_in_a_row_do_not_mix() {
    let (_machines, collectives) = collectives(&[0, 1, 1, 0], &settings()).await;
    let results = at_all(&collectives, |collective| async move {
        for step in 0..50 {
            let mut values = vec![step as f32 + f32::from(collective.rank()); 7];
            collective.all_reduce_sum(moment(step), &mut values).await.unwrap();
            assert_eq!(values, [step as f32 * 4.0 + 6.0; 7]);
        }
    });
    assert_eq!(results.await.len(), 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn gathers_and_broadcasts_bring_what_was_given() {
    for placement in [vec![0], vec![0, 0, 1], vec![0, 1, 2]] {
        let (_machines, collectives) = collectives(&placement, &settings()).await;
        let gathered = at_all(&collectives, |collective| async move {
            let own = vec![collective.rank() as u8; usize::from(collective.rank())];
            collective
                .all_gather(ParcelKind::LabelCounts, moment(0), own)
                .await
                .unwrap()
        });
        let expected: Vec<Vec<u8>> = (0..placement.len()).map(|rank| vec![rank as u8; rank]).collect();
        for all in gathered.await {
            assert_eq!(all, expected);
        }
        let spread = at_all(&collectives, |collective| async move {
            let own = vec![collective.rank() as u8 + 5; 100];
            collective
                .broadcast(ParcelKind::Parameters, moment(0), own)
                .await
                .unwrap()
        });
        for bytes in spread.await {
            assert_eq!(bytes, [5; 100]);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_does_not_take_part_is_named_with_its_machine() {
    let (_machines, ranks) = ranks(&[0, 1], &settings()).await;
    let (router, inbox) = &ranks[0];
    let names = vec!["machine-0".to_owned(), "machine-1".to_owned()];
    let deadline = Duration::from_millis(200);
    let collective = Collective::new(0, names.clone(), router.clone(), inbox.clone(), deadline).unwrap();
    let error = collective.all_reduce_sum(moment(4), &mut [1.0, 2.0]).await.unwrap_err();
    let sentence = "rank 1 on machine-1 sent no GradientSlice for epoch 1, step 4 within 0.2 s";
    assert_eq!(error.to_string(), sentence);
    assert!(matches!(
        Collective::new(2, names, router.clone(), inbox.clone(), deadline),
        Err(CollectiveError::NoSuchRank { rank: 2, ranks: 2 })
    ));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_vector_of_another_length_is_an_error_that_names_its_rank() {
    let (_machines, ranks) = ranks(&[0, 0], &settings()).await;
    let (router, inbox) = &ranks[1];
    let names = vec!["here".to_owned(), "here".to_owned()];
    let collective = Collective::new(1, names, router.clone(), inbox.clone(), DEADLINE).unwrap();
    // What rank 0 sends when its vector has four elements, where rank 1 has five.
    let parcel = Parcel {
        from: 0,
        to: 1,
        tag: tag(ParcelKind::GradientSlice, moment(0)),
        payload: vec![0; 2 * 4],
        period: moment(0).period,
    };
    router.post(parcel).await.unwrap();
    let error = collective.all_reduce_sum(moment(0), &mut [1.0; 5]).await.unwrap_err();
    let sentence = "rank 0 on here sent 8 bytes of GradientSlice where 12 belong; its model is another one";
    assert_eq!(error.to_string(), sentence);
}

/// A transport that cannot reach anybody.
struct Nowhere;

impl Transport for Nowhere {
    fn fetch_rows<'a>(
        &'a self,
        _: Caller,
        owner: PartId,
        _: Vec<u32>,
        _: Box<dyn RowSink + 'a>,
    ) -> BoxFuture<'a, Result<(), TransportError>> {
        Box::pin(async move { Err(TransportError::UnknownOwner { part: owner }) })
    }

    fn open_stream(&self, _: Caller, owner: PartId) -> BoxFuture<'_, Result<Box<dyn RowStream>, TransportError>> {
        Box::pin(async move { Err(TransportError::UnknownOwner { part: owner }) })
    }

    fn sample(
        &self,
        _: Caller,
        owner: PartId,
        _: Vec<NeighborQuery>,
    ) -> BoxFuture<'_, Result<Vec<NeighborReply>, TransportError>> {
        Box::pin(async move { Err(TransportError::UnknownOwner { part: owner }) })
    }

    fn post(&self, parcel: Parcel) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move { Err(TransportError::UnknownRank { rank: parcel.to }) })
    }
}

#[tokio::test]
async fn a_rank_that_cannot_be_reached_fails_at_once() {
    let inbox = Inbox::new(0, crate::transport::InboxLimits::default());
    let names = vec!["here".to_owned(), "there".to_owned()];
    let collective = Collective::new(0, names, Arc::new(Nowhere), inbox, Duration::from_secs(3600)).unwrap();
    let error = collective.all_reduce_sum(moment(0), &mut [1.0]).await.unwrap_err();
    assert!(matches!(error, CollectiveError::Unreachable { rank: 1, .. }), "{error}");
}
