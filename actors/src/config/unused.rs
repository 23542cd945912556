//! Flags that were given and change nothing, of which a user is warned.
//!
//! Only flags count: a file may say more than its policy uses, so that one file serves several policies.

use std::collections::BTreeSet;
use std::fmt;

use greengnn_model::book::PartitionBook;
use greengnn_model::plan::Delivery;
use greengnn_model::policy::streamed::for_delivery;
use greengnn_model::policy::two_level::TwoLevel;
use greengnn_model::policy::{Policy, PolicyParameters};
use greengnn_model::store::PartsManifest;

use super::{Communication, ConfigError, TrainConfig};

/// What a flag decides that some policies have no use for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setting {
    Budget,
    Window,
    PresampleEpochs,
    VipWeight,
    NetworkCost,
}

/// A flag that changes nothing, in the words of the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedFlag {
    flag: &'static str,
    /// Those of the runs that it was given for.
    policies: BTreeSet<String>,
}

impl fmt::Display for UnusedFlag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let policies: Vec<_> = self.policies.iter().map(String::as_str).collect();
        let noun = if policies.len() == 1 { "policy" } else { "policies" };
        write!(
            f,
            "{} changes nothing with {noun} {}",
            self.flag,
            policies.join(" and ")
        )
    }
}

/// Those of the `given` flags that change nothing in any of these runs on the parts of `manifest`.
///
/// # Errors
/// A configuration that [`TrainConfig::check`] refuses.
pub fn unused_flags(
    given: &[(&'static str, Setting)],
    runs: &[TrainConfig],
    manifest: &PartsManifest,
) -> Result<Vec<UnusedFlag>, ConfigError> {
    let mut unused = Vec::new();
    for (flag, setting) in given {
        let mut policies = BTreeSet::new();
        let mut is_used = false;
        for run in runs {
            match setting.unused_by(run, manifest)? {
                Some(policy) => drop(policies.insert(policy)),
                None => is_used = true,
            }
        }
        if !is_used && !policies.is_empty() {
            unused.push(UnusedFlag { flag, policies });
        }
    }
    Ok(unused)
}

/// Whether a policy caches more under a larger budget.
pub fn takes_budget(policy: &dyn Policy, book: &PartitionBook) -> bool {
    (0..book.parts()).any(|rank| policy.budget_rows(book, rank, 0) != policy.budget_rows(book, rank, u32::MAX))
}

impl Setting {
    /// The policy of this run, and why it has no use for the setting where that does not go without saying; none if it
    /// uses it.
    fn unused_by(self, run: &TrainConfig, manifest: &PartsManifest) -> Result<Option<String>, ConfigError> {
        if run.communication == Communication::PushPull {
            // Such flags have been refused.
            return Ok(None);
        }
        let delivery = run.delivery(manifest)?;
        let parameters = run.policy_parameters();
        let policy = for_delivery(parameters.policy(&run.policy)?, delivery);
        let ranks_alike = |other: PolicyParameters| -> Result<bool, ConfigError> {
            Ok(other.policy(&run.policy)?.score_kind() == policy.score_kind())
        };
        let (is_unused, why) = match self {
            Self::Budget => (!takes_budget(&*policy, manifest.row_book()), ""),
            // The ranks also choose the delivery then.
            Self::Window if run.window.is_auto() => (false, ""),
            Self::Window if delivery == Delivery::Stream => (!policy.uses_window(), " (streamed)"),
            Self::Window => (!policy.uses_window(), ""),
            Self::PresampleEpochs => {
                let one_more = PolicyParameters {
                    presample_epochs: parameters.presample_epochs + 1,
                    ..parameters
                };
                let weighs = !ranks_alike(PolicyParameters {
                    vip_weight: 0.5,
                    ..one_more
                })?;
                (
                    ranks_alike(one_more)?,
                    if weighs { " (at a --vip-weight of 1)" } else { "" },
                )
            }
            Self::VipWeight => {
                let halves = [0.25, 0.5].map(|vip_weight| PolicyParameters {
                    vip_weight,
                    ..parameters
                });
                (ranks_alike(halves[0])? && ranks_alike(halves[1])?, "")
            }
            Self::NetworkCost => (policy.name() != TwoLevel::default().name(), ""),
        };
        Ok(is_unused.then(|| format!("{}{why}", policy.name())))
    }
}

#[cfg(test)]
mod tests {
    use greengnn_model::synth::SynthSpec;

    use super::super::{TrainFlags, Window};

    /// What is said of these flags.
    fn warnings(change: impl FnOnce(&mut TrainFlags)) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let parts = folder.path().join("parts");
        SynthSpec::tiny(60).write_parts(&parts, 2).unwrap();
        let manifest = greengnn_model::store::PartsManifest::open(&parts).unwrap();
        let mut flags = TrainFlags::default();
        change(&mut flags);
        let config = flags.resolve().unwrap();
        let unused = flags.unused(&[config], &manifest).unwrap();
        unused.iter().map(ToString::to_string).collect()
    }

    fn with(policy: &str, change: impl FnOnce(&mut TrainFlags)) -> Vec<String> {
        warnings(|flags| {
            flags.policy = Some(policy.to_owned());
            change(flags);
        })
    }

    #[test]
    fn policies_that_keep_nothing_or_everything_take_no_budget() {
        let budget = |flags: &mut TrainFlags| flags.budget = Some("5%".to_owned());
        for policy in ["full", "on-demand"] {
            let said = format!("--budget changes nothing with policy {policy}");
            assert_eq!(with(policy, budget), [said]);
            assert!(with(policy, |_| ()).is_empty());
        }
        for policy in ["bulk", "window", "lru", "degree", "two-level", "epoch"] {
            assert!(with(policy, budget).is_empty(), "{policy}");
        }
    }

    #[test]
    fn windows_are_for_policies_that_ask_by_them() {
        let window = |flags: &mut TrainFlags| flags.window = Some(Window::Steps(4));
        assert!(with("window", window).is_empty());
        assert_eq!(with("lru", window), ["--window changes nothing with policy lru"]);
        assert_eq!(
            with("bulk", window),
            ["--window changes nothing with policy bulk (streamed)"]
        );
        assert!(with("bulk", |flags| flags.window = Some(Window::Auto)).is_empty());
        let whole = with("bulk", |flags| {
            flags.window = Some(Window::Steps(4));
            flags.budget = Some("100%".to_owned());
        });
        assert!(whole.is_empty(), "{whole:?}");
    }

    #[test]
    fn parameters_are_for_the_policies_that_they_are_documented_for() {
        let all = |flags: &mut TrainFlags| {
            flags.presample_epochs = Some(2);
            flags.vip_weight = Some(1.0);
            flags.network_cost = Some(10.0);
        };
        let nothing = |flag: &str, policy: &str| format!("--{flag} changes nothing with policy {policy}");
        let at_one = "vip (at a --vip-weight of 1)";
        let network = nothing("network-cost", "vip");
        assert_eq!(with("vip", all), [nothing("presample-epochs", at_one), network.clone()]);
        let weighed = with("vip", |flags| {
            all(flags);
            flags.vip_weight = Some(0.25);
        });
        assert_eq!(weighed, [network]);
        let at_one = "two-level (at a --vip-weight of 1)";
        assert_eq!(with("two-level", all), [nothing("presample-epochs", at_one)]);
        assert_eq!(
            with("presample", all),
            [nothing("vip-weight", "presample"), nothing("network-cost", "presample")]
        );
        assert_eq!(with("bulk", all).len(), 3);
    }

    #[test]
    fn what_a_file_says_may_go_unused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        std::fs::write(&path, "budget = \"5%\"\nwindow = 4\nvip-weight = 0.5\n").unwrap();
        assert!(with("full", |flags| flags.config = Some(path)).is_empty());
    }
}
