//! How many rows of an answer have come, so that a step waits only for those that it needs.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use greengnn_model::plan::LaterRows;
use tokio::sync::Notify;

/// Tells whoever waits when the rows of one request have come up to where a step needs them.
pub struct Landing {
    /// Rows from the first on that are in their places.
    come: AtomicUsize,
    /// Ascending numbers of rows that somebody may wait for.
    ends: Vec<usize>,
    notify: Notify,
}

impl Landing {
    pub fn new(later: &[LaterRows]) -> Arc<Self> {
        let ends = later.iter().map(|later| later.first_row as usize);
        Arc::new(Self {
            come: AtomicUsize::new(0),
            ends: ends.collect(),
            notify: Notify::new(),
        })
    }

    /// Rows that have come so far.
    pub fn come(&self) -> usize {
        self.come.load(Ordering::Acquire)
    }

    /// How many of `rows` rows, the first of which is row `first` of the request, have come before: an answer that is asked
    /// for again after a fault starts from its first row, and slots of its early rows may hold others by then.
    pub fn known(&self, first: usize, rows: usize) -> usize {
        self.come.load(Ordering::Relaxed).saturating_sub(first).min(rows)
    }

    /// Notes that all rows up to `come` are in their places. Only the request's own task calls this.
    pub fn note(&self, come: usize) {
        let before = self.come.load(Ordering::Relaxed);
        if come > before {
            // Whoever sees the number sees the rows.
            self.come.store(come, Ordering::Release);
            if self.ends.iter().any(|end| (before + 1..=come).contains(end)) {
                self.notify.notify_one();
            }
        }
    }

    /// Waits until `rows` rows, one of the numbers that may be waited for, have come. One task may wait at a time.
    pub async fn reached(&self, rows: usize) {
        while self.come.load(Ordering::Acquire) < rows {
            // A note between the look and the wait leaves a permit.
            self.notify.notified().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn landing(first_rows: &[u32]) -> Arc<Landing> {
        let later = (1..).zip(first_rows).map(|(needed_by_step, first_row)| LaterRows {
            first_row: *first_row,
            needed_by_step,
        });
        Landing::new(&later.collect::<Vec<_>>())
    }

    #[tokio::test]
    async fn a_wait_ends_once_its_rows_have_come_and_not_before() {
        let landing = landing(&[2, 5]);
        let waiting = Arc::clone(&landing);
        let mut wait = tokio::spawn(async move { waiting.reached(5).await });
        landing.note(2);
        landing.note(4);
        let early = tokio::time::timeout(Duration::from_millis(50), &mut wait).await;
        assert!(early.is_err(), "only four of five rows have come");
        landing.note(7);
        wait.await.unwrap();
        // What has come is not waited for, though nobody notes it again.
        landing.reached(2).await;
        landing.reached(5).await;
    }

    #[test]
    fn rows_that_come_again_are_known() {
        let landing = landing(&[2]);
        assert_eq!(landing.known(0, 4), 0);
        landing.note(3);
        assert_eq!(
            [landing.known(0, 2), landing.known(0, 4), landing.known(2, 4)],
            [2, 3, 1]
        );
        assert_eq!(landing.known(5, 4), 0);
        landing.note(1);
        assert_eq!(landing.known(0, 4), 3);
    }
}
