//! Ranks in one process, on several machines: columns, limits, and silent ranks. Whole runs are in `tests/push_pull.rs`.

use std::time::Duration;

use greengnn_model::counters::{Period, Phase};
use proptest::prelude::*;
use tokio::task::JoinSet;

use super::columns::ColumnTable;
use super::*;
use crate::collective::{Collective, Moment};
use crate::shard::Served;
use crate::transport::ParcelKind;
use crate::transport::testing::{Machine, ranks, settings, shard};

const SETUP: Period = Period {
    epoch: 0,
    phase: Phase::Setup,
};

fn book(sizes: &[u32]) -> PartitionBook {
    let mut bounds = vec![0];
    for size in sizes {
        bounds.push(bounds[bounds.len() - 1] + size);
    }
    PartitionBook::new(bounds).unwrap()
}

async fn collectives(placement: &[usize], deadline: Duration) -> (Vec<Machine>, Vec<Collective>) {
    let names: Vec<String> = placement.iter().map(|machine| format!("machine-{machine}")).collect();
    let (machines, ranks) = ranks(placement, &settings()).await;
    let collectives = ranks
        .into_iter()
        .enumerate()
        .map(|(rank, (router, inbox))| Collective::new(rank as Rank, names.clone(), router, inbox, deadline).unwrap());
    (machines, collectives.collect())
}

/// Gathers the columns of every rank, and checks each value and each count.
async fn every_rank_gets_its_columns(sizes: &[u32], features: usize, placement: &[usize], piece_bytes: usize) {
    let book = Arc::new(book(sizes));
    let (_machines, collectives) = collectives(placement, Duration::from_secs(20)).await;
    let shards: Vec<_> = (0..)
        .zip(sizes)
        .map(|(part, rows)| shard(part, *rows, features))
        .collect();
    let mut running = JoinSet::new();
    for (shard, collective) in shards.iter().zip(collectives) {
        let (book, shard) = (Arc::clone(&book), Arc::clone(shard));
        running.spawn(async move {
            let rank = collective.rank();
            let gathered = ColumnTable::gather_pieces(&book, &shard, &collective, piece_bytes).await;
            (rank, gathered.unwrap())
        });
    }
    for (rank, (table, came)) in running.join_all().await {
        let columns = columns_of(rank, book.parts(), features);
        assert_eq!((table.width(), table.nodes()), (columns.len(), book.nodes()));
        for node in 0..book.nodes() {
            let home = book.row_home(node);
            let row = &shards[usize::from(home.owner)].data().row(home.row)[columns.clone()];
            assert_eq!(table.row(node), row, "node {node} at rank {rank}");
        }
        assert_eq!(came, ColumnTable::bytes_to_gather(&book, rank, features));
        let sent: Vec<Served> = shards.iter().map(|shard| shard.served().of(rank, SETUP)).collect();
        assert_eq!(sent.iter().map(|served| served.pull_bytes).sum::<u64>(), came);
        assert!(
            sent.iter()
                .all(|served| served.feature_rows == 0 && served.feature_requests == 0)
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_come_in_pieces_from_every_part() {
    every_rank_gets_its_columns(&[50, 0, 7, 31], 11, &[0, 1, 0, 1], 40).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranks_without_columns_give_and_get_nothing() {
    every_rank_gets_its_columns(&[5, 6, 7, 8, 9], 3, &[0, 0, 1, 1, 2], 8).await;
    assert_eq!(holders(&book(&[1; 5]), 3), [1, 3, 4]);
    assert_eq!(holders(&book(&[1; 5]), 5), [0, 1, 2, 3, 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn any_sizes_and_widths_are_gathered(
        sizes in prop::collection::vec(0u32..40, 1..6), features in 1usize..9, piece_bytes in 1usize..200,
    ) {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        let runtime = builder.worker_threads(2).enable_all().build().unwrap();
        let placement: Vec<usize> = (0..sizes.len()).map(|rank| rank % 2).collect();
        runtime.block_on(every_rank_gets_its_columns(&sizes, features, &placement, piece_bytes));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_that_sends_no_columns_is_named() {
    let (_machines, collectives) = collectives(&[0, 1], Duration::from_millis(50)).await;
    let error = ColumnTable::gather(&book(&[3, 3]), &shard(0, 3, 4), &collectives[0]).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("rank 1 on machine-1 sent no Columns"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn columns_of_another_width_are_refused() {
    let (_machines, collectives) = collectives(&[0, 0], Duration::from_secs(20)).await;
    let moment = Moment {
        epoch: 0,
        step: 0,
        period: SETUP,
    };
    let sent = collectives[1].send(ParcelKind::Columns, moment, 0, vec![0; 3 * 2 * 4 + 4]);
    sent.await.unwrap();
    let error = ColumnTable::gather(&book(&[3, 3]), &shard(0, 3, 4), &collectives[0]).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("sent 28 bytes of Columns where 24 belong"), "{error}");
}

#[test]
fn more_sums_than_an_inbox_holds_are_refused_before_they_are_sent() {
    check_sum_bytes(2, 7, MOST_SUM_BYTES).unwrap();
    let error = check_sum_bytes(2, 7, MOST_SUM_BYTES + 1).unwrap_err().to_string();
    assert!(
        error.contains("step 7") && error.contains("rank 2") && error.contains("batch size"),
        "{error}"
    );
}

#[test]
fn sends_start_behind_the_sender() {
    assert_eq!(others(&[0, 2, 3, 5], 2).collect::<Vec<_>>(), [3, 5, 0]);
    assert_eq!(others(&[1, 3], 2).collect::<Vec<_>>(), [3, 1]);
}
