//! How long a peer has been silent, as far as the listener can tell.

use std::time::{Duration, Instant};

/// The most that one look may add. A listener that was stopped itself, by Ctrl-Z or by a suspended computer, has not
/// listened meanwhile and must not take its own absence for the peer's.
const MOST_PER_LOOK: Duration = Duration::from_millis(2500);

/// Adds up the silence of a peer from look to look.
#[derive(Debug)]
pub struct Silence {
    lasted: Duration,
    looked: Instant,
}

impl Default for Silence {
    fn default() -> Self {
        Self {
            lasted: Duration::ZERO,
            looked: Instant::now(),
        }
    }
}

impl Silence {
    /// The peer was heard.
    pub fn broken(&mut self) {
        *self = Self::default();
    }

    /// The peer was not heard since the last look.
    pub fn goes_on(&mut self) {
        self.goes_on_at(Instant::now());
    }

    pub fn lasted(&self) -> Duration {
        self.lasted
    }

    fn goes_on_at(&mut self, now: Instant) {
        self.lasted += now.saturating_duration_since(self.looked).min(MOST_PER_LOOK);
        self.looked = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_adds_up_and_the_listeners_own_absence_counts_little() {
        let mut silence = Silence::default();
        let start = silence.looked;
        silence.goes_on_at(start + Duration::from_secs(1));
        silence.goes_on_at(start + Duration::from_secs(2));
        assert_eq!(silence.lasted(), Duration::from_secs(2));
        silence.goes_on_at(start + Duration::from_secs(600));
        assert_eq!(silence.lasted(), Duration::from_millis(4500));
        silence.broken();
        assert_eq!(silence.lasted(), Duration::ZERO);
    }
}
