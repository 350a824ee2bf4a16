//! Random electors, masters and a Lease, with lost and late writes, late reads, pauses, crashes and clocks of different speed: two masters never
//! serve at one time, epochs grow, and an undisturbed set elects one.
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::time::Duration;

use admitted::election::{Election, Record, Seat, Step};

/// Milliseconds of one step of the stage.
const TICK: u64 = 50;
/// The elector gives up a request after this time. The API server may carry it out later.
const CALL: u64 = 2000;
const RUNS: u64 = 100;
const TICKS: u64 = 6000;
/// From the last disturbance to a leader: a Lease runs out, and a stopped process has woken.
const CALM: u64 = 60_000;

/// A reproducible source of numbers (SplitMix64).
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True once in `times` calls.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

/// A write of the Lease in transit.
struct Write {
    from: usize,
    run: u64,
    /// Version that it replaces; `None`: it creates.
    on: Option<u64>,
    record: Record,
    started: Duration,
    /// Time of the stage at which the server carries it out, and at which the answer arrives; `None`: lost.
    done: Option<u64>,
    answer: Option<u64>,
    outcome: Option<Option<Record>>,
}

/// One pod.
struct Pod {
    /// Offset of its clock and its speed in thousandths.
    offset: u64,
    speed: u64,
    election: Election,
    /// Counts runs of the elector.
    run: u64,
    /// Time of the stage until which the elector, or its master, is stopped.
    elector_stopped: u64,
    master_stopped: u64,
    /// A write is pending until this time at most.
    busy: Option<u64>,
    /// Reads in transit: arrival and content.
    reads: Vec<(u64, Option<Record>)>,
    read_due: u64,
    /// The epoch that its master serves, and until when by its clock.
    serves: Option<(u64, Duration)>,
    /// The master's connection to this run of the elector was made.
    connected: bool,
    restart: u64,
}

impl Pod {
    fn new(dice: &mut Dice, index: usize) -> Self {
        let offset = dice.below(1_000_000);
        Self {
            offset,
            speed: 970 + dice.below(61),
            election: Election::new(format!("m{index}"), Duration::from_millis(offset)),
            run: 0,
            elector_stopped: 0,
            master_stopped: 0,
            busy: None,
            reads: Vec::new(),
            read_due: 0,
            serves: None,
            connected: false,
            restart: 0,
        }
    }

    /// Its time since boot.
    fn clock(&self, stage: u64) -> Duration {
        Duration::from_millis(self.offset) + Duration::from_micros(stage * self.speed)
    }

    /// True if the master would answer a request now.
    fn answers(&self, stage: u64) -> bool {
        stage >= self.master_stopped
            && self
                .serves
                .is_some_and(|(_, until)| self.clock(stage) < until)
    }
}

struct Stage {
    dice: Dice,
    now: u64,
    lease: Option<Record>,
    pods: Vec<Pod>,
    writes: Vec<Write>,
    /// Highest epoch that was served.
    epoch: u64,
    terms: u64,
    disturbed: bool,
}

impl Stage {
    fn new(seed: u64) -> Self {
        let mut dice = Dice(seed);
        let pods = (0..3).map(|index| Pod::new(&mut dice, index)).collect();
        Self {
            dice,
            now: 0,
            lease: None,
            pods,
            writes: Vec::new(),
            epoch: 0,
            terms: 0,
            disturbed: true,
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        self.server();
        for index in 0..self.pods.len() {
            if self.disturbed {
                self.disturb(index);
            }
            self.master(index);
            self.elector(index);
        }
        let leaders = self.pods.iter().filter(|pod| pod.answers(self.now)).count();
        assert!(leaders <= 1, "{leaders} masters serve at {}", self.now);
    }

    /// Carries out writes and delivers their answers.
    fn server(&mut self) {
        let now = self.now;
        for write in &mut self.writes {
            if write.outcome.is_none() && write.done.is_some_and(|done| done <= now) {
                let current = self.lease.as_ref().map(|record| record.version);
                let applied = current == write.on;
                if applied {
                    let version = current.unwrap_or(0) + 1;
                    let record = Record {
                        version,
                        ..write.record.clone()
                    };
                    self.lease = Some(record);
                }
                write.outcome = Some(self.lease.clone().filter(|_| applied));
            }
        }
        let (arrived, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.writes)
            .into_iter()
            .partition(|write| write.outcome.is_some() && write.answer.is_some_and(|at| at <= now));
        // What the elector gave up may be carried out later, but not for ever.
        self.writes = rest
            .into_iter()
            .filter(|write| write.outcome.is_none() || write.answer.is_some())
            .filter(|write| write.done.is_some())
            .collect();
        for write in arrived {
            let pod = &mut self.pods[write.from];
            if pod.run != write.run || pod.busy.is_none_or(|until| until < now) {
                continue;
            }
            if now < pod.elector_stopped {
                // It reads the answer when it wakes.
                self.writes.push(Write {
                    answer: Some(pod.elector_stopped),
                    ..write
                });
                pod.busy = Some(pod.elector_stopped + TICK);
                continue;
            }
            pod.busy = None;
            let clock = pod.clock(now);
            match write.outcome.unwrap() {
                None => pod.election.failed(clock),
                Some(record) => {
                    if let Some(grant) = pod.election.wrote(record, write.started, clock) {
                        if pod.serves.is_none_or(|(epoch, _)| epoch != grant.epoch) {
                            assert!(grant.epoch > self.epoch, "epoch {} again", grant.epoch);
                            assert!(pod.serves.is_none(), "a master in two epochs");
                            self.epoch = grant.epoch;
                            self.terms += 1;
                        }
                        pod.serves = Some((grant.epoch, grant.until));
                    }
                }
            }
        }
    }

    fn disturb(&mut self, index: usize) {
        let dice = &mut self.dice;
        let pod = &mut self.pods[index];
        if dice.once_in(800) {
            pod.elector_stopped = self.now + dice.below(30_000);
        }
        if dice.once_in(800) {
            pod.master_stopped = self.now + dice.below(30_000);
        }
        if dice.once_in(1500) {
            // The elector is killed and started again.
            pod.run += 1;
            pod.election = Election::new(format!("m{index}"), pod.clock(self.now));
            pod.connected = false;
            pod.busy = None;
            pod.reads.clear();
            pod.elector_stopped = self.now + dice.below(3000);
        }
        if dice.once_in(1500) {
            // The master is killed.
            pod.serves = None;
            pod.master_stopped = 0;
            pod.restart = self.now + dice.below(20_000);
            if pod.connected {
                pod.connected = false;
                pod.election.sits(Seat::Absent, pod.clock(self.now));
            }
        }
    }

    /// The master ends at the end of its permission, and connects.
    fn master(&mut self, index: usize) {
        let pod = &mut self.pods[index];
        if self.now < pod.master_stopped || self.now < pod.restart {
            return;
        }
        let clock = pod.clock(self.now);
        if pod.serves.is_some_and(|(_, until)| clock >= until) {
            pod.serves = None;
            if pod.connected {
                pod.connected = false;
                pod.election.sits(Seat::Absent, clock);
            }
        }
        if !pod.connected && self.now >= pod.elector_stopped {
            pod.connected = true;
            let seat = pod
                .serves
                .map_or(Seat::Waiting, |(epoch, _)| Seat::Serving(epoch));
            pod.election.sits(seat, clock);
        }
    }

    fn elector(&mut self, index: usize) {
        let (dice, now) = (&mut self.dice, self.now);
        let late = if self.disturbed { 3000 } else { 100 };
        let pod = &mut self.pods[index];
        if now >= pod.read_due {
            pod.read_due = now + 200;
            pod.reads.push((now + dice.below(late), self.lease.clone()));
        }
        if now < pod.elector_stopped {
            return;
        }
        let clock = pod.clock(now);
        if let Some(until) = pod.busy {
            if now < until {
                return;
            }
            pod.busy = None;
            pod.election.failed(clock);
        }
        let (arrived, rest) = pod.reads.drain(..).partition(|(at, _)| *at <= now);
        pod.reads = rest;
        let arrived: Vec<(u64, Option<Record>)> = arrived;
        for (_, record) in arrived {
            pod.election.saw(record, clock);
        }
        let (holder, epoch) = match pod.election.step(clock, 1) {
            Step::Wait(_) => return,
            Step::Hold { epoch } => (format!("m{index}"), epoch),
            Step::Release => (String::new(), pod.election.epoch()),
        };
        let lost = self.disturbed && dice.once_in(6);
        let slow = if self.disturbed && dice.once_in(6) {
            6000
        } else {
            300
        };
        let done = (!lost).then(|| now + dice.below(slow));
        let silent = self.disturbed && dice.once_in(6);
        self.writes.push(Write {
            from: index,
            run: pod.run,
            on: pod.election.version(),
            record: Record {
                holder,
                epoch,
                version: 0,
            },
            started: clock,
            done,
            answer: done.filter(|_| !silent).map(|done| done + dice.below(300)),
            outcome: None,
        });
        pod.busy = Some(now + CALL);
    }
}

#[test]
fn two_masters_never_serve_at_one_time_and_a_calm_set_has_one() {
    let mut terms = 0;
    for seed in 0..RUNS {
        let mut stage = Stage::new(seed);
        for _ in 0..TICKS {
            stage.tick();
        }
        stage.disturbed = false;
        for _ in 0..CALM / TICK {
            stage.tick();
        }
        let leaders = stage
            .pods
            .iter()
            .filter(|pod| pod.answers(stage.now))
            .count();
        assert_eq!(leaders, 1, "no leader in run {seed} after a calm time");
        terms += stage.terms;
    }
    println!("{RUNS} runs of {} s, {terms} terms", TICKS * TICK / 1000);
    assert!(
        terms > 5 * RUNS,
        "only {terms} terms: the model is too calm"
    );
}
