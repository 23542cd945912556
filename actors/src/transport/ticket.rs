//! Tickets: single-use secrets that let one peer open one lane.
//!
//! They are handed out over the authenticated control session, so a lane inherits its authentication. A ticket is 32
//! random bytes, belongs to one life of one machine, works once and expires.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use subtle::{Choice, ConstantTimeEq};

use super::{BoxFuture, MachineId};
use crate::shard::lock;

/// The secret that opens one lane. Its `Debug` form does not show it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ticket([u8; Ticket::BYTES]);

impl Ticket {
    pub const BYTES: usize = 32;

    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }

    pub fn as_bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Ticket(..)")
    }
}

/// Why no ticket could be issued.
#[derive(Debug, thiserror::Error)]
pub enum TicketError {
    #[error("{outstanding} tickets are out already, which is the limit; wait until some are used or expire")]
    TooMany { outstanding: usize },
    #[error("the system gave no random bytes for a ticket: {0}")]
    NoRandomness(#[from] getrandom::Error),
}

/// The tickets that a listener has handed out and not yet seen.
#[derive(Debug)]
pub struct TicketBook {
    lifetime: Duration,
    limit: usize,
    outstanding: Mutex<Vec<Outstanding>>,
}

#[derive(Debug)]
struct Outstanding {
    ticket: Ticket,
    holder: MachineId,
    expires: Instant,
}

impl Default for TicketBook {
    /// Tickets that live for 30 s, at most 1,024 of them at once.
    fn default() -> Self {
        Self::new(Duration::from_secs(30), 1024)
    }
}

impl TicketBook {
    /// Tickets that live for `lifetime`, at most `limit` at once.
    pub fn new(lifetime: Duration, limit: usize) -> Self {
        Self {
            lifetime,
            limit,
            outstanding: Mutex::default(),
        }
    }

    /// A new ticket for one lane of `holder`.
    ///
    /// # Errors
    /// Too many tickets are out, or the system has no randomness.
    pub fn issue(&self, holder: &MachineId) -> Result<Ticket, TicketError> {
        self.issue_at(holder, Instant::now())
    }

    fn issue_at(&self, holder: &MachineId, now: Instant) -> Result<Ticket, TicketError> {
        let mut secret = [0; Ticket::BYTES];
        getrandom::fill(&mut secret)?;
        let ticket = Ticket(secret);
        let mut outstanding = lock(&self.outstanding);
        outstanding.retain(|entry| entry.expires > now);
        if outstanding.len() >= self.limit {
            return Err(TicketError::TooMany {
                outstanding: outstanding.len(),
            });
        }
        outstanding.push(Outstanding {
            ticket: ticket.clone(),
            holder: holder.clone(),
            expires: now + self.lifetime,
        });
        Ok(ticket)
    }

    /// Whether `ticket` is out, fresh and `holder`'s. It is used up by this, also when somebody else shows it.
    pub fn redeem(&self, ticket: &Ticket, holder: &MachineId) -> bool {
        self.redeem_at(ticket, holder, Instant::now())
    }

    fn redeem_at(&self, ticket: &Ticket, holder: &MachineId, now: Instant) -> bool {
        let mut outstanding = lock(&self.outstanding);
        // All entries are compared in full, so that the time taken tells nothing about any of them.
        let mut place = None;
        for (index, entry) in outstanding.iter().enumerate() {
            let same: Choice = entry.ticket.0[..].ct_eq(&ticket.0[..]);
            if bool::from(same) {
                place = Some(index);
            }
        }
        place.is_some_and(|index| {
            let entry = outstanding.swap_remove(index);
            entry.holder == *holder && entry.expires > now
        })
    }

    /// Withdraws all tickets of a machine, whatever its incarnation.
    pub fn revoke(&self, machine: &str) {
        lock(&self.outstanding).retain(|entry| entry.holder.name != machine);
    }
}

/// Where a [`LaneClient`](super::LaneClient) gets the ticket for its next lane: from the peer, over the control session.
pub trait TicketSource: Send + Sync + 'static {
    /// # Errors
    /// Says in a sentence why there is no ticket.
    fn next_ticket(&self) -> BoxFuture<'_, Result<Ticket, String>>;
}

/// Tickets that were fetched beforehand. When they are used up, lost lanes cannot be opened again.
#[derive(Debug)]
pub struct TicketStack(Mutex<VecDeque<Ticket>>);

impl TicketStack {
    pub fn new(tickets: impl IntoIterator<Item = Ticket>) -> Self {
        Self(Mutex::new(tickets.into_iter().collect()))
    }
}

impl TicketSource for TicketStack {
    fn next_ticket(&self) -> BoxFuture<'_, Result<Ticket, String>> {
        Box::pin(async {
            lock(&self.0)
                .pop_front()
                .ok_or_else(|| "all tickets are used".to_owned())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder() -> MachineId {
        MachineId::new("machine-1", 7)
    }

    #[test]
    fn a_ticket_works_once_for_its_holder() {
        let book = TicketBook::default();
        let ticket = book.issue(&holder()).unwrap();
        assert!(book.redeem(&ticket, &holder()));
        assert!(!book.redeem(&ticket, &holder()));
    }

    #[test]
    fn another_machine_or_an_earlier_life_burns_the_ticket() {
        for other in [MachineId::new("machine-2", 7), MachineId::new("machine-1", 6)] {
            let book = TicketBook::default();
            let ticket = book.issue(&holder()).unwrap();
            assert!(!book.redeem(&ticket, &other));
            assert!(!book.redeem(&ticket, &holder()));
        }
    }

    #[test]
    fn tickets_expire_and_then_make_room() {
        let book = TicketBook::new(Duration::from_secs(5), 2);
        let start = Instant::now();
        let ticket = book.issue_at(&holder(), start).unwrap();
        book.issue_at(&holder(), start).unwrap();
        assert!(matches!(
            book.issue_at(&holder(), start),
            Err(TicketError::TooMany { outstanding: 2 })
        ));
        let later = start + Duration::from_secs(5);
        assert!(!book.redeem_at(&ticket, &holder(), later));
        assert!(book.issue_at(&holder(), later).is_ok());
    }

    #[test]
    fn revoked_and_invented_tickets_open_nothing() {
        let book = TicketBook::default();
        let ticket = book.issue(&holder()).unwrap();
        assert!(!book.redeem(&Ticket::from_bytes([0; 32]), &holder()));
        book.revoke("machine-1");
        assert!(!book.redeem(&ticket, &holder()));
        assert_eq!(format!("{ticket:?}"), "Ticket(..)");
    }
}
