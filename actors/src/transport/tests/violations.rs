//! The conformance suite notices transports that break a rule.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::super::conformance::{Subject, Violation, check};
use super::super::testing::shard;
use super::super::*;
use crate::shard::PartShard;

/// What a transport does wrong.
#[derive(Clone, Copy, PartialEq)]
enum Fault {
    SwapsRows,
    AsksTwice,
    IgnoresEmptyRequests,
    AcceptsBadRows,
    SwapsParcels,
    SendsAtOnce,
}

/// A router with a fault.
struct Faulty {
    router: Router,
    owner: Arc<PartShard>,
    fault: Fault,
    held: std::sync::Mutex<Option<Parcel>>,
    posts: AtomicUsize,
}

/// Hands all rows over in one piece at the end, the first two swapped if so asked.
struct Gather<'a> {
    rows: Vec<Vec<u8>>,
    sink: Box<dyn RowSink + 'a>,
    swap: bool,
}

impl RowSink for Gather<'_> {
    fn accept(&mut self, _: usize, rows: &[u8]) {
        self.rows.push(rows.to_vec());
    }
}

impl Drop for Gather<'_> {
    fn drop(&mut self) {
        if self.swap && self.rows.len() > 1 {
            self.rows.swap(0, 1);
        }
        if !self.rows.is_empty() {
            self.sink.accept(0, &self.rows.concat());
        }
    }
}

impl Transport for Faulty {
    fn fetch_rows<'a>(
        &'a self,
        caller: Caller,
        owner: PartId,
        mut rows: Vec<u32>,
        sink: Box<dyn RowSink + 'a>,
    ) -> BoxFuture<'a, Result<(), TransportError>> {
        Box::pin(async move {
            let mut sink = sink;
            match self.fault {
                Fault::SwapsRows | Fault::SendsAtOnce => {
                    let swap = self.fault == Fault::SwapsRows;
                    let rows = Vec::new();
                    sink = Box::new(Gather { rows, sink, swap });
                }
                Fault::AsksTwice => {
                    let _ = self.owner.admit_rows(caller, &rows);
                }
                Fault::IgnoresEmptyRequests if rows.is_empty() => return Ok(()),
                Fault::AcceptsBadRows => rows.retain(|row| *row < self.owner.rows()),
                _ => {}
            }
            self.router.fetch_rows(caller, owner, rows, sink).await
        })
    }

    fn sample(
        &self,
        caller: Caller,
        owner: PartId,
        queries: Vec<NeighborQuery>,
    ) -> BoxFuture<'_, Result<Vec<NeighborReply>, TransportError>> {
        self.router.sample(caller, owner, queries)
    }

    fn post(&self, parcel: Parcel) -> BoxFuture<'_, Result<(), TransportError>> {
        Box::pin(async move {
            if self.fault == Fault::SwapsParcels && self.posts.fetch_add(1, Ordering::Relaxed) == 0 {
                *crate::shard::lock(&self.held) = Some(parcel);
                return Ok(());
            }
            let late = crate::shard::lock(&self.held).take_if(|held| held.tag == parcel.tag);
            self.router.post(parcel).await?;
            match late {
                Some(late) => self.router.post(late).await,
                None => Ok(()),
            }
        })
    }
}

async fn violation(fault: Fault) -> Violation {
    let hosted = Arc::new(Hosted::new(MachineId::new("alone", 1)));
    let (owner, inbox) = (shard(5, 300, 8), Inbox::new(2, InboxLimits::default()));
    hosted.add_shard(Arc::clone(&owner));
    hosted.add_inbox(Arc::clone(&inbox));
    let transport = Faulty {
        router: Router::new(hosted, Duration::from_secs(20)),
        owner: Arc::clone(&owner),
        fault,
        held: std::sync::Mutex::default(),
        posts: AtomicUsize::new(0),
    };
    let subject = Arc::new(Subject {
        transport: Arc::new(transport),
        owner,
        inbox,
        unowned: 6,
        most_bytes_at_once: 64,
        silent: None,
    });
    check(&subject).await.unwrap_err()
}

#[tokio::test]
async fn every_broken_rule_is_found() {
    for (fault, rule) in [
        (Fault::SwapsRows, 1),
        (Fault::AsksTwice, 2),
        (Fault::IgnoresEmptyRequests, 3),
        (Fault::AcceptsBadRows, 4),
        (Fault::SwapsParcels, 6),
        (Fault::SendsAtOnce, 7),
    ] {
        let found = violation(fault).await;
        assert_eq!(found.rule, rule, "{found}");
    }
}
