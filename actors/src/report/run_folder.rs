//! The folder of a run.
//!
//! | file | what |
//! |---|---|
//! | `config.toml` | the configuration that ran, every default filled in |
//! | `metrics.jsonl` | one line per step and rank and one per epoch, appended while the run lasts |
//! | `energy.jsonl` | power of every domain over time, one line per reading, appended while the run lasts |
//! | `profile.json` | what requests and rows cost, of a probe and of a run that chose |
//! | `choice.json` | the candidates for the window and what was expected of them, of a run that chose |
//! | `model.safetensors` | the trained parameters |
//! | `summary.json` | the result |
//! | `report.html` | the result as a page |
//!
//! Files that are written at once appear whole or not at all: they are written under another name, synced and renamed.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use greengnn_energy::choice::Choice;
use greengnn_energy::profile::Profile;
use serde::Serialize;

use super::records::{EnergyPoint, MetricsRecord};
use super::summary::RunSummary;

const CONFIG: &str = "config.toml";
const METRICS: &str = "metrics.jsonl";
const ENERGY: &str = "energy.jsonl";
const CHOICE: &str = "choice.json";
const PROFILE: &str = "profile.json";
const MODEL: &str = "model.safetensors";
const SUMMARY: &str = "summary.json";
const REPORT: &str = "report.html";

/// Why a run folder could not be made or written.
#[derive(Debug, thiserror::Error)]
pub enum RunFolderError {
    #[error("the run folder {} is not empty; choose another with --out, or remove it", path.display())]
    NotEmpty { path: PathBuf },
    #[error("{} cannot be the run folder, it is a file; choose another with --out", path.display())]
    NotAFolder { path: PathBuf },
    #[error("{what} {} failed", path.display())]
    Io {
        what: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    #[error("{name} could not be written down: {reason}")]
    Encode { name: &'static str, reason: String },
}

/// The folder of one run, open for appending.
#[derive(Debug)]
pub struct RunFolder {
    path: PathBuf,
    /// The folders that were made for it, from within.
    made: Vec<PathBuf>,
    metrics: File,
    energy: File,
}

impl RunFolder {
    /// Makes the folder, and its parents, and opens its timelines. A folder that exists must be empty, so that no run
    /// is overwritten.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, RunFolderError> {
        let path = path.into();
        if path.exists() && !path.is_dir() {
            return Err(RunFolderError::NotAFolder { path });
        }
        let missing = path.ancestors().take_while(|folder| !folder.as_os_str().is_empty());
        let made = missing
            .take_while(|folder| !folder.exists())
            .map(Path::to_owned)
            .collect();
        fs::create_dir_all(&path).map_err(io_error("making", &path))?;
        let mut entries = fs::read_dir(&path).map_err(io_error("reading", &path))?;
        if entries.next().is_some() {
            return Err(RunFolderError::NotEmpty { path });
        }
        let metrics = create_appendable(&path.join(METRICS))?;
        let energy = create_appendable(&path.join(ENERGY))?;
        Ok(Self {
            path,
            made,
            metrics,
            energy,
        })
    }

    /// Removes what was made and written for a run that did not come about. What others have put there stays, and so does
    /// what cannot be removed.
    pub fn discard(self) {
        for name in [CONFIG, METRICS, ENERGY] {
            let _ = fs::remove_file(self.path.join(name));
        }
        for folder in &self.made {
            let _ = fs::remove_dir(folder);
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where the trained parameters belong; [`RunFolder::write_model`] writes them there.
    pub fn model_path(&self) -> PathBuf {
        self.path.join(MODEL)
    }

    pub fn report_path(&self) -> PathBuf {
        self.path.join(REPORT)
    }

    /// Writes the resolved configuration as TOML and returns the text.
    pub fn write_config(&self, config: &impl Serialize) -> Result<String, RunFolderError> {
        let text = toml::to_string_pretty(config).map_err(|error| RunFolderError::Encode {
            name: CONFIG,
            reason: error.to_string(),
        })?;
        self.write(CONFIG, text.as_bytes())?;
        Ok(text)
    }

    /// Appends one line to `metrics.jsonl`, in one write, so that a reader never sees half a line for long.
    pub fn append_metrics(&self, record: &MetricsRecord) -> Result<(), RunFolderError> {
        self.append(&self.metrics, METRICS, std::slice::from_ref(record))
    }

    /// Appends one line per point to `energy.jsonl`, in one write.
    pub fn append_energy(&self, points: &[EnergyPoint]) -> Result<(), RunFolderError> {
        self.append(&self.energy, ENERGY, points)
    }

    /// The energy timeline as it was appended, for the report.
    pub fn read_energy(&self) -> Result<Vec<EnergyPoint>, RunFolderError> {
        let path = self.path.join(ENERGY);
        let file = File::open(&path).map_err(io_error("reading", &path))?;
        let points = serde_json::Deserializer::from_reader(BufReader::new(file)).into_iter();
        points
            .collect::<Result<_, _>>()
            .map_err(|error| io_error("reading", &path)(error.into()))
    }

    /// Writes what a run has chosen, and from what.
    pub fn write_choice(&self, choice: &Choice) -> Result<(), RunFolderError> {
        let text = serde_json::to_vec_pretty(choice).map_err(encode_error(CHOICE))?;
        self.write(CHOICE, &text)
    }

    /// Writes what a probe measured.
    pub fn write_profile(&self, profile: &Profile) -> Result<(), RunFolderError> {
        let text = serde_json::to_vec_pretty(profile).map_err(encode_error(PROFILE))?;
        self.write(PROFILE, &text)
    }

    /// Writes the parameters; `safetensors` is the whole file.
    pub fn write_model(&self, safetensors: &[u8]) -> Result<(), RunFolderError> {
        self.write(MODEL, safetensors)
    }

    pub fn write_summary(&self, summary: &RunSummary) -> Result<(), RunFolderError> {
        replace_summary(&self.path, summary)
    }

    /// Writes the page of [`html::render`](super::html::render).
    pub fn write_report(&self, html: &str) -> Result<(), RunFolderError> {
        self.write(REPORT, html.as_bytes())
    }

    fn append(&self, mut file: &File, name: &'static str, records: &[impl Serialize]) -> Result<(), RunFolderError> {
        let mut lines = Vec::new();
        for record in records {
            serde_json::to_writer(&mut lines, record).map_err(encode_error(name))?;
            lines.push(b'\n');
        }
        file.write_all(&lines)
            .map_err(io_error("appending to", &self.path.join(name)))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), RunFolderError> {
        write_whole(&self.path, name, bytes)
    }
}

/// Writes `summary.json` into the folder of a run, in place of one that is there.
pub fn replace_summary(folder: &Path, summary: &RunSummary) -> Result<(), RunFolderError> {
    let mut text = serde_json::to_string_pretty(summary).map_err(encode_error(SUMMARY))?;
    text.push('\n');
    write_whole(folder, SUMMARY, text.as_bytes())
}

/// Writes a file whole: under a temporary name in the same folder, synced, renamed, and the folder synced.
fn write_whole(folder: &Path, name: &str, bytes: &[u8]) -> Result<(), RunFolderError> {
    let path = folder.join(name);
    let failed = io_error("writing", &path);
    let write = || -> io::Result<()> {
        // As open as the umask allows, like every other file of the run.
        let mut file = tempfile::Builder::new()
            .prefix(&format!(".{name}."))
            .permissions(Permissions::from_mode(0o666))
            .tempfile_in(folder)?;
        file.write_all(bytes)?;
        file.as_file().sync_all()?;
        file.persist(&path)?;
        File::open(folder)?.sync_all()
    };
    write().map_err(failed)
}

fn create_appendable(path: &Path) -> Result<File, RunFolderError> {
    let file = OpenOptions::new().append(true).create_new(true).open(path);
    file.map_err(io_error("making", path))
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> RunFolderError + use<> {
    let path = path.to_path_buf();
    move |source| RunFolderError::Io { what, path, source }
}

fn encode_error(name: &'static str) -> impl FnOnce(serde_json::Error) -> RunFolderError {
    move |error| RunFolderError::Encode {
        name,
        reason: error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use greengnn_energy::quality::Quality;

    use super::super::records::StepRecord;
    use super::super::summary::tests::sample;
    use super::*;

    fn new_folder() -> (tempfile::TempDir, RunFolder) {
        let parent = tempfile::tempdir().unwrap();
        let folder = RunFolder::create(parent.path().join("runs/one")).unwrap();
        (parent, folder)
    }

    fn names(folder: &RunFolder) -> Vec<String> {
        let entries = fs::read_dir(folder.path()).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn a_folder_with_anything_in_it_is_refused_and_left_alone() {
        let (_parent, folder) = new_folder();
        let before = names(&folder);
        let error = RunFolder::create(folder.path()).unwrap_err();
        assert!(matches!(error, RunFolderError::NotEmpty { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("runs/one is not empty; choose another with --out"),
            "{error}"
        );
        assert_eq!(names(&folder), before);
    }

    #[test]
    fn of_a_run_that_did_not_come_about_nothing_stays() {
        let parent = tempfile::tempdir().unwrap();
        let discard = |path: &Path| {
            let folder = RunFolder::create(path).unwrap();
            folder.write_config(&BTreeMap::from([("epochs", 1)])).unwrap();
            folder.discard();
        };
        let runs = parent.path().join("runs");
        discard(&runs.join("deep/one"));
        assert!(!runs.exists());
        // Folders that were there before stay.
        fs::create_dir_all(runs.join("two")).unwrap();
        discard(&runs.join("two"));
        assert_eq!(fs::read_dir(runs.join("two")).unwrap().count(), 0);
    }

    #[test]
    fn an_empty_folder_is_taken_and_a_file_is_not() {
        let parent = tempfile::tempdir().unwrap();
        RunFolder::create(parent.path()).unwrap();
        let file = parent.path().join(METRICS);
        let error = RunFolder::create(&file).unwrap_err();
        assert!(matches!(error, RunFolderError::NotAFolder { .. }), "{error}");
        let error = RunFolder::create(file.join("below")).unwrap_err();
        assert!(matches!(error, RunFolderError::Io { what: "making", .. }), "{error}");
    }

    #[test]
    fn metrics_are_one_object_a_line_at_once() {
        let (_parent, folder) = new_folder();
        for step in 0..3 {
            let record = MetricsRecord::Step(StepRecord {
                step,
                ..StepRecord::default()
            });
            folder.append_metrics(&record).unwrap();
            let text = fs::read_to_string(folder.path().join(METRICS)).unwrap();
            assert_eq!(text.lines().count(), step as usize + 1);
            assert!(text.ends_with('\n'));
            let last: MetricsRecord = serde_json::from_str(text.lines().last().unwrap()).unwrap();
            assert_eq!(last, record);
        }
        folder
            .append_metrics(&MetricsRecord::Epoch(sample().epochs[1].clone()))
            .unwrap();
        let text = fs::read_to_string(folder.path().join(METRICS)).unwrap();
        let json: serde_json::Value = serde_json::from_str(text.lines().last().unwrap()).unwrap();
        assert_eq!((&json["kind"], &json["epoch"]), (&"epoch".into(), &1.into()));
        assert_eq!(json["feature_rows"], 2_600);
    }

    #[test]
    fn the_energy_timeline_is_read_as_it_was_appended() {
        let (_parent, folder) = new_folder();
        let point = EnergyPoint {
            at_s: 0.05,
            host: "one".into(),
            domain: "package-0".into(),
            kind: "cpu".into(),
            watts: Some(41.5),
            quality: Quality::Estimated,
        };
        let unread = EnergyPoint {
            watts: None,
            quality: Quality::Unavailable,
            ..point.clone()
        };
        assert_eq!(folder.read_energy().unwrap(), []);
        folder.append_energy(&[point.clone(), unread.clone()]).unwrap();
        folder.append_energy(&[]).unwrap();
        folder.append_energy(std::slice::from_ref(&point)).unwrap();
        assert_eq!(folder.read_energy().unwrap(), [point.clone(), unread, point]);
        let text = fs::read_to_string(folder.path().join(ENERGY)).unwrap();
        let expected =
            r#"{"at_s":0.05,"host":"one","domain":"package-0","kind":"cpu","watts":41.5,"quality":"estimated"}"#;
        assert_eq!(text.lines().next(), Some(expected));
        assert!(text.contains("\"watts\":null,\"quality\":\"unavailable\""), "{text}");
    }

    #[test]
    fn whole_files_replace_their_older_selves_and_leave_nothing_behind() {
        let (_parent, folder) = new_folder();
        folder.write_report("<p>first</p>").unwrap();
        folder.write_report("<p>second</p>").unwrap();
        folder.write_model(b"weights").unwrap();
        folder.write_summary(&sample()).unwrap();
        #[derive(Serialize)]
        struct Config {
            policy: &'static str,
            fanouts: [u32; 2],
        }
        let config = Config {
            policy: "bulk",
            fanouts: [25, 10],
        };
        let text = folder.write_config(&config).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(CONFIG)).unwrap(), text);
        assert!(text.contains("policy = \"bulk\""), "{text}");
        assert_eq!(fs::read_to_string(folder.report_path()).unwrap(), "<p>second</p>");
        assert_eq!(fs::read(folder.model_path()).unwrap(), b"weights");
        let summary = fs::read_to_string(folder.path().join(SUMMARY)).unwrap();
        assert_eq!(RunSummary::from_json(&summary).unwrap(), sample());
        assert_eq!(names(&folder), [CONFIG, ENERGY, METRICS, MODEL, REPORT, SUMMARY]);
    }

    #[test]
    fn a_write_that_fails_keeps_the_older_file() {
        let (_parent, folder) = new_folder();
        folder.write_report("<p>first</p>").unwrap();
        // A configuration that TOML cannot hold fails before anything is touched.
        let error = folder.write_config(&u64::MAX).unwrap_err();
        assert!(matches!(error, RunFolderError::Encode { name: CONFIG, .. }), "{error}");
        // A folder in the way makes the rename fail; the temporary file goes with it.
        fs::create_dir_all(folder.path().join(SUMMARY).join("inside")).unwrap();
        let error = folder.write_summary(&sample()).unwrap_err();
        assert!(error.to_string().starts_with("writing "), "{error}");
        assert_eq!(fs::read_to_string(folder.report_path()).unwrap(), "<p>first</p>");
        assert_eq!(names(&folder), [ENERGY, METRICS, REPORT, SUMMARY]);
    }
}
