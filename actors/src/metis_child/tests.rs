use greengnn_model::synth::SynthSpec;

use super::*;

/// A child that is no `greengnn` but a line of shell; it gets the arguments as `$1`, `$2` and so on.
fn shell(line: &str) -> MetisProgram {
    MetisProgram {
        program: "/bin/sh".into(),
        first_arguments: ["-c", line, "sh"].map(OsString::from).to_vec(),
        time_limit: Duration::from_secs(60),
    }
}

/// The whole chain of an error.
fn in_words(error: &MetisChildError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(&format!(" because {error}"));
        cause = error.source();
    }
    text
}

fn failure(program: &MetisProgram) -> String {
    let folder = tempfile::tempdir().unwrap();
    let graph = folder.path().join("graph");
    SynthSpec::tiny(20).write(&graph).unwrap();
    in_words(&program.assign(&graph, 2, 1).unwrap_err())
}

#[test]
fn a_crash_is_an_error_that_names_the_signal() {
    let message = failure(&shell("kill -SEGV $$"));
    assert!(message.contains("crashed with signal 11"), "{message}");
    let message = failure(&shell("kill -KILL $$"));
    assert!(message.contains("memory runs out"), "{message}");
}

#[test]
fn a_failure_is_an_error_with_what_the_child_said() {
    let message = failure(&shell("echo much ado >&2; echo error: no such luck >&2; exit 3"));
    assert!(message.ends_with("(exit code 3): no such luck"), "{message}");
}

#[test]
fn a_flood_of_complaints_is_cut_short_and_blocks_nobody() {
    let message = failure(&shell("head -c 1000000 /dev/zero | tr '\\0' 'x' >&2; exit 1"));
    assert!(message.len() < 5_000, "{} bytes", message.len());
}

#[test]
fn no_result_or_a_strange_one_is_an_error() {
    let message = failure(&shell("exit 0"));
    assert!(message.contains("no usable result"), "{message}");
    let message = failure(&shell("while [ \"$1\" != --result ]; do shift; done; echo 0 > \"$2\""));
    assert!(message.contains("not a readable .npy file"), "{message}");
}

#[test]
fn a_child_that_does_not_end_is_stopped() {
    let slow = MetisProgram {
        time_limit: Duration::from_millis(50),
        ..shell("exec sleep 600")
    };
    assert!(failure(&slow).contains("did not end"));
}

#[test]
fn a_program_that_is_not_there_is_named() {
    let message = failure(&MetisProgram::of("/no/such/greengnn".into()));
    assert!(message.contains("/no/such/greengnn"), "{message}");
}

#[test]
fn a_graph_beyond_32_bits_is_refused_before_anything_is_started() {
    let folder = tempfile::tempdir().unwrap();
    let graph = folder.path().join("graph");
    SynthSpec::tiny(20).write(&graph).unwrap();
    let manifest = graph.join("manifest.json");
    let text = std::fs::read_to_string(&manifest).unwrap();
    let huge = text.replacen("\"edges\": 160,", "\"edges\": 3200000000,", 1);
    assert_ne!(text, huge);
    std::fs::write(&manifest, huge).unwrap();
    let refused = MetisProgram::of("/no/such/greengnn".into())
        .assign(&graph, 2, 1)
        .unwrap_err();
    let message = in_words(&refused);
    assert!(
        message.contains("32 bits") && message.contains("3200000000"),
        "{message}"
    );
    assert!(
        message.contains("`--method cluster`") && message.contains("`--method stream`"),
        "{message}"
    );
}
