//! Judgement of silent threads from what the kernel reports.

use engine::ThreadStage;

use super::*;

const LOOK: Duration = Duration::from_secs(2);
const SILENT: Duration = Duration::from_secs(8);

fn sample(state: char, ran: u64, queued: u64) -> Option<Sample> {
    Some(Sample {
        state,
        time: ThreadTime {
            ran: Duration::from_millis(ran),
            queued: Duration::from_millis(queued),
        },
    })
}

#[test]
fn a_thread_that_waits_for_something_else_than_a_processor_is_blocked() {
    for state in ['D', 'S', 't', 'T'] {
        let first = sample(state, 5, 1);
        assert_eq!(
            judge([first, first], BUSY, LOOK, SILENT),
            Finding::Blocked,
            "{state}"
        );
    }
}

#[test]
fn a_thread_that_runs_in_its_turn_is_in_an_endless_loop_also_with_a_share_of_a_processor() {
    let first = sample('R', 6_000, 0);
    let loops = |last, watched| judge([first, last], BUSY, watched, SILENT);
    assert_eq!(loops(sample('R', 8_000, 0), LOOK), Finding::Loops);
    // A tenth of a processor.
    assert_eq!(loops(sample('R', 6_200, 1_800), LOOK), Finding::Starved);
    assert_eq!(loops(sample('R', 7_000, 9_000), 5 * LOOK), Finding::Loops);
}

#[test]
fn a_control_thread_may_run_for_longer_than_a_data_thread() {
    let first = sample('R', 6_000, 0);
    let control = |ran| judge([first, sample('R', ran, 0)], CONTROL_BUSY, LOOK, SILENT);
    assert_eq!(control(35_999), Finding::Starved);
    assert_eq!(control(36_000), Finding::Loops);
}

#[test]
fn a_thread_without_processor_time_is_never_hung() {
    let first = sample('R', 5, 0);
    assert_eq!(judge([first, first], BUSY, LOOK, SILENT), Finding::Starved);
    // It waited, ran for a moment, and waits for its next page.
    let last = sample('D', 6, 7_900);
    assert_eq!(judge([first, last], BUSY, LOOK, SILENT), Finding::Starved);
    assert_eq!(
        judge([first, first], BUSY, LONGEST, 2 * LONGEST),
        Finding::Starved
    );
}

#[test]
fn a_thread_of_which_the_kernel_reports_nothing_is_hung_at_the_longer_bound() {
    assert_eq!(judge([None, None], BUSY, LOOK, SILENT), Finding::Starved);
    assert_eq!(
        judge([None, sample('S', 1, 1)], BUSY, LOOK, SILENT),
        Finding::Starved
    );
    assert_eq!(
        judge([None, None], BUSY, LONGEST, LONGEST),
        Finding::Unknown
    );
}

#[test]
fn the_files_of_a_thread_are_parsed() {
    let time = |schedstat| ThreadTime::parse(schedstat);
    assert_eq!(
        time("1500000000 2000000 17\n"),
        sample('t', 1_500, 2).map(|sample| sample.time)
    );
    assert_eq!(time(""), None);
    assert_eq!(innermost_tid("Name:\tdata-0\nNSpid:\t4711\t7\n"), Some(7));
    assert_eq!(innermost_tid("NSpid:\t4711\n"), Some(4711));
    assert_eq!(innermost_tid("Name:\tdata-0\n"), None);
    let stack = "[<0>] folio_wait_bit_common+0x13d/0x350\n[<0>] filemap_fault+0x1a/0x8f0\n";
    assert_eq!(
        functions(stack),
        "kernel stack: folio_wait_bit_common < filemap_fault"
    );
    assert!(functions("").contains("empty"));
}

fn hung(finding: Finding, last: Option<Sample>) -> String {
    let thread = SilentThread {
        number: 1,
        tid: 9,
        turn: 3,
        stage: ThreadStage::Progress,
        seconds: 8,
    };
    Hung {
        thread: Some(thread),
        tid: 4711,
        silent: SILENT,
        finding,
        last,
    }
    .to_string()
}

#[test]
fn a_hung_thread_is_described_with_stage_and_state() {
    assert_eq!(
        hung(Finding::Blocked, sample('D', 0, 0)),
        "data thread 1 of the engine process (thread ID 4711) has been in one turn for 8 s, \
         in the stage `progress of the transport`; it is blocked (state D)"
    );
    assert!(
        hung(Finding::Loops, sample('R', 0, 0)).ends_with("it runs in an endless loop (state R)")
    );
    assert!(hung(Finding::Unknown, None).ends_with("/proc has no data of it"));
}

#[tokio::test]
async fn a_thread_needs_two_looks_in_the_same_turn() {
    let pid = std::process::id();
    let own = i32::try_from(pid).unwrap();
    // The ID in this process's own namespace is the last one of the status.
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let tid = innermost_tid(&status).unwrap();
    let tids = node_tids(pid);
    assert!(tids.get(&tid) == Some(&pid) && !tids.contains_key(&(own + 1_000_000)));
    let mut threads = SilentThreads::default();
    let mut silent = SilentThread {
        number: 0,
        tid: i32::MAX,
        turn: 3,
        stage: ThreadStage::Sleeping,
        seconds: LONGEST.as_secs(),
    };
    let mut look = async |silent| threads.look(pid, silent).await.is_some();
    assert!(!look(vec![silent]).await, "the first look");
    silent.turn = 4;
    assert!(!look(vec![silent]).await, "another turn");
    assert!(!look(Vec::new()).await);
    assert!(!look(vec![silent]).await, "it was not silent between");
    assert!(look(vec![silent]).await);
}

#[tokio::test]
async fn no_more_threads_are_watched_than_the_limit() {
    let mut threads = SilentThreads::default();
    let silent = |number| SilentThread {
        number,
        tid: 1,
        turn: 3,
        stage: ThreadStage::Sleeping,
        seconds: 8,
    };
    let many = (0..10 * SILENT_LIMIT).map(silent).collect();
    let hung = threads.look(std::process::id(), many).await;
    assert!(hung.is_none());
    assert_eq!(threads.0.len(), SILENT_LIMIT);
}

#[test]
fn a_process_that_has_ended_and_was_not_waited_for_is_exiting() {
    let mut child = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let pid = child.id();
    assert!(!is_exiting(pid));
    child.kill().unwrap();
    let begun = std::time::Instant::now();
    while !is_exiting(pid) {
        assert!(begun.elapsed() < Duration::from_secs(20));
        std::thread::park_timeout(Duration::from_millis(1));
    }
    child.wait().unwrap();
    assert!(!is_exiting(pid), "there is no process");
}
