//! Random electors, masters and a Lease, with lost and late writes, late reads, an API server that is away, lost requests to witnesses, pauses,
//! crashes and clocks of different speed: two masters never serve at one time, epochs grow, and an undisturbed set elects one. With
//! the default Lease, the shortest one, and pods that are replaced by pods with another one.
#![allow(clippy::unwrap_used, reason = "a failed step ends the test")]

use std::time::Duration;

use admitted::election::{Election, Record, Seat, Step, Times};

/// Milliseconds of one step of the stage.
const TICK: u64 = 50;
const RUNS: u64 = 100;
const TICKS: u64 = 6000;
/// From the last disturbance to a leader, beside the longest Lease, which runs out: a stopped process has woken.
const CALM: u64 = 45_000;
/// Seconds for which a master may serve by promises of a witness, and after which others take its Lease: shorter than in the product, so
/// that a run has several such times.
const ALONE: u64 = 80;
const ABANDONED: u64 = 96;
const ATTEND: u64 = 4;
/// Calm seconds in which a leader with a witness writes once in 5 s, by a clock that differs by a tenth.
const QUIET: u64 = 100;

/// How often something happens: once in so many steps.
struct Weather {
    /// A pod is lost, and another one is created.
    lost: u64,
    /// An elector, or a master, is stopped.
    stopped: u64,
    /// An elector, or a master, is killed.
    killed: u64,
    /// The API server is away for all, or for one pod.
    away: u64,
    cut_off: u64,
}

/// Processes fail more often than the API server.
const CRASHES: Weather = Weather {
    lost: 2500,
    stopped: 800,
    killed: 1500,
    away: 1200,
    cut_off: 2000,
};
/// The API server fails more often than processes.
const OUTAGES: Weather = Weather {
    lost: 6000,
    stopped: 6000,
    killed: 3000,
    away: 700,
    cut_off: 700,
};

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

    fn one_of<'a, T>(&mut self, choice: &'a [T]) -> &'a T {
        &choice[usize::try_from(self.below(choice.len() as u64)).unwrap()]
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
    number: u64,
    /// Version that it replaces; `None`: it creates.
    on: Option<u64>,
    record: Record,
    started: Duration,
    /// Time of the stage at which the server carries it out, and at which the answer arrives; `None`: lost.
    done: Option<u64>,
    answer: Option<u64>,
    outcome: Option<Option<Record>>,
}

/// A request to a witness, or its promise, in transit.
struct Request {
    from: usize,
    run: u64,
    holder: String,
    epoch: u64,
    witness: String,
    sent: Duration,
    /// Time of the stage at which it arrives.
    arrives: u64,
    promised: bool,
    /// No write was begun beside it: the elector waits for the promise.
    awaited: bool,
}

/// One pod.
struct Pod {
    /// Offset of its clock and its speed in thousandths.
    offset: u64,
    speed: u64,
    election: Election,
    /// Its name, which no other pod had, and its Lease.
    name: String,
    times: Times,
    /// Counts runs of the elector.
    run: u64,
    /// Time of the stage until which the elector, or its master, is stopped.
    elector_stopped: u64,
    master_stopped: u64,
    /// A write is pending until this time at most. Answers of earlier ones are ignored.
    busy: Option<u64>,
    /// An awaited request is pending until this time at most.
    requesting: Option<u64>,
    /// Counts its writes.
    write: u64,
    /// Time of the stage until which the API server is away for this pod.
    away: u64,
    /// Reads in transit: arrival and content.
    reads: Vec<(u64, Option<Record>)>,
    read_due: u64,
    /// The epoch that its master serves, and until when by its clock.
    serves: Option<(u64, Duration)>,
    /// The master's connection to this run of the elector was made.
    connected: bool,
    restart: u64,
}

/// Time of a message between electors.
fn transit(dice: &mut Dice, disturbed: bool) -> u64 {
    let longest = match disturbed {
        true if dice.once_in(4) => 3000,
        true => 200,
        false => 100,
    };
    dice.below(longest)
}

fn clock(offset: u64, speed: u64, stage: u64) -> Duration {
    Duration::from_millis(offset) + Duration::from_micros(stage * speed)
}

impl Pod {
    fn new(dice: &mut Dice, name: String, leases: &[u32], stage: u64) -> Self {
        let offset = dice.below(1_000_000);
        // Two differ by a tenth at most.
        let speed = 955 + dice.below(95);
        let times = Times {
            alone: Duration::from_secs(ALONE),
            abandoned: Duration::from_secs(ABANDONED),
            attend: Duration::from_secs(ATTEND),
            ..Times::of(*dice.one_of(leases))
        };
        Self {
            offset,
            speed,
            election: Election::new(name.clone(), times, clock(offset, speed, stage)),
            name,
            times,
            run: 0,
            elector_stopped: 0,
            master_stopped: 0,
            busy: None,
            requesting: None,
            write: 0,
            away: 0,
            reads: Vec::new(),
            read_due: 0,
            serves: None,
            connected: false,
            restart: 0,
        }
    }

    /// Its time since boot.
    fn clock(&self, stage: u64) -> Duration {
        clock(self.offset, self.speed, stage)
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
    weather: &'static Weather,
    /// Seconds of the Leases that pods have.
    leases: &'static [u32],
    now: u64,
    lease: Option<Record>,
    pods: Vec<Pod>,
    writes: Vec<Write>,
    requests: Vec<Request>,
    /// Time of the stage until which the API server is away.
    away: u64,
    /// Permissions by promise that were later than the one before.
    extended: u64,
    /// Requests without a write, and writes.
    unwritten: u64,
    wrote: u64,
    /// Highest epoch that was served.
    epoch: u64,
    terms: u64,
    /// Pods that were created.
    created: usize,
    disturbed: bool,
}

impl Stage {
    fn new(seed: u64, leases: &'static [u32], weather: &'static Weather) -> Self {
        let mut dice = Dice(seed);
        let pods: Vec<Pod> = (0..3)
            .map(|index| Pod::new(&mut dice, format!("m{index}"), leases, 0))
            .collect();
        Self {
            dice,
            weather,
            leases,
            created: pods.len(),
            now: 0,
            lease: None,
            pods,
            writes: Vec::new(),
            requests: Vec::new(),
            away: 0,
            extended: 0,
            unwritten: 0,
            wrote: 0,
            epoch: 0,
            terms: 0,
            disturbed: true,
        }
    }

    fn tick(&mut self) {
        self.now += TICK;
        if self.disturbed && self.now >= self.away && self.dice.once_in(self.weather.away) {
            self.away = self.now + self.dice.below(120_000);
        }
        self.server();
        self.request();
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
            if (pod.run, pod.write) != (write.run, write.number)
                || pod.busy.is_none_or(|until| until < now)
            {
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

    /// Delivers requests and promises.
    fn request(&mut self) {
        let now = self.now;
        let (arrived, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut self.requests)
            .into_iter()
            .partition(|request| request.arrives <= now);
        self.requests = rest;
        for mut request in arrived {
            if self.disturbed && self.dice.once_in(8) {
                continue;
            }
            if request.promised {
                let pod = &mut self.pods[request.from];
                let clock = pod.clock(now);
                if pod.run != request.run || now < pod.elector_stopped {
                    continue;
                }
                // One that is late counts too, which it does not in the product.
                if request.awaited {
                    pod.requesting = None;
                }
                let Some(grant) = pod.election.promised(&request.witness, request.sent, clock)
                else {
                    continue;
                };
                assert_eq!(pod.serves.map(|(epoch, _)| epoch), Some(grant.epoch));
                pod.serves = Some((grant.epoch, grant.until));
                self.extended += 1;
                continue;
            }
            let mut pods = self.pods.iter_mut();
            let witness =
                pods.find(|pod| pod.name == request.witness && now >= pod.elector_stopped);
            let Some(witness) = witness else { continue };
            let clock = witness.clock(now);
            if witness
                .election
                .promises(&request.holder, request.epoch, clock)
            {
                request.promised = true;
                request.arrives = now + transit(&mut self.dice, self.disturbed);
                self.requests.push(request);
            }
        }
    }

    fn disturb(&mut self, index: usize) {
        let (dice, weather) = (&mut self.dice, self.weather);
        let pod = &mut self.pods[index];
        if dice.once_in(weather.lost) {
            // Both are killed. Another pod is created on another node, with another name, clock and Lease.
            let name = format!("m{}", self.created);
            self.created += 1;
            let run = pod.run + 1;
            *pod = Pod {
                run,
                ..Pod::new(dice, name, self.leases, self.now)
            };
        }
        if dice.once_in(weather.cut_off) {
            pod.away = self.now + dice.below(120_000);
        }
        if dice.once_in(weather.stopped) {
            pod.elector_stopped = self.now + dice.below(30_000);
        }
        if dice.once_in(weather.stopped) {
            pod.master_stopped = self.now + dice.below(30_000);
        }
        if dice.once_in(weather.killed) {
            // The elector is killed and started again.
            pod.run += 1;
            pod.election = Election::new(pod.name.clone(), pod.times, pod.clock(self.now));
            pod.connected = false;
            pod.busy = None;
            pod.requesting = None;
            pod.reads.clear();
            pod.elector_stopped = self.now + dice.below(3000);
        }
        if dice.once_in(weather.killed) {
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
        // Most reads are quick: one that is late gives the former leader more time.
        let late = if self.disturbed && dice.once_in(4) {
            3000
        } else {
            100
        };
        let pod = &mut self.pods[index];
        if now >= pod.read_due && now >= self.away.max(pod.away) {
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
        if let Some(until) = pod.requesting {
            if now < until {
                return;
            }
            pod.requesting = None;
            pod.election.unanswered();
        }
        let (arrived, rest) = pod.reads.drain(..).partition(|(at, _)| *at <= now);
        pod.reads = rest;
        let arrived: Vec<(u64, Option<Record>)> = arrived;
        for (_, record) in arrived {
            pod.election.saw(record, clock);
        }
        let before = pod.election.lease().cloned();
        let seconds = u32::try_from(pod.times.lease.as_secs()).ok();
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap();
        let record = match pod.election.step(clock, 1) {
            Step::Wait(_) => return,
            Step::Request { epoch } => {
                let before = before.unwrap();
                assert_eq!((&before.holder, before.epoch), (&pod.name, epoch));
                self.unwritten += 1;
                pod.requesting = Some(now + milliseconds(pod.times.reply));
                self.requests.push(Request {
                    from: index,
                    run: pod.run,
                    holder: before.holder,
                    epoch,
                    witness: before.witness,
                    sent: clock,
                    arrives: now + transit(dice, self.disturbed),
                    promised: false,
                    awaited: true,
                });
                return;
            }
            Step::Hold { epoch } => Record {
                holder: pod.name.clone(),
                epoch,
                version: 0,
                seconds,
                witness: pod.election.witness().to_owned(),
            },
            Step::Release => Record {
                holder: String::new(),
                witness: String::new(),
                ..before.clone().unwrap()
            },
            Step::Attend => Record {
                witness: pod.name.clone(),
                ..before.clone().unwrap()
            },
        };
        if let Some(before) = before
            && before.holder == pod.name
            && before.epoch == record.epoch
            && !before.witness.is_empty()
        {
            self.requests.push(Request {
                from: index,
                run: pod.run,
                holder: before.holder,
                epoch: before.epoch,
                witness: before.witness,
                sent: clock,
                arrives: now + transit(dice, self.disturbed),
                promised: false,
                awaited: false,
            });
            // A promise that comes takes it back.
            pod.election.unanswered();
        }
        let lost = now < self.away.max(pod.away) || self.disturbed && dice.once_in(6);
        let slow = match dice.below(12) {
            0 if self.disturbed => 60_000,
            1 | 2 if self.disturbed => 6000,
            _ => 300,
        };
        let done = (!lost).then(|| now + dice.below(slow));
        let silent = self.disturbed && dice.once_in(6);
        pod.write += 1;
        self.wrote += 1;
        self.writes.push(Write {
            from: index,
            run: pod.run,
            number: pod.write,
            on: pod.election.version(),
            record,
            started: clock,
            done,
            answer: done.filter(|_| !silent).map(|done| done + dice.below(300)),
            outcome: None,
        });
        // The elector gives up then. The API server may carry it out later.
        pod.busy = Some(now + milliseconds(pod.times.call));
    }
}

/// The number of runs, which are equal each time; `ELECTION_RUNS` sets another.
fn runs() -> u64 {
    let wanted = std::env::var("ELECTION_RUNS").ok();
    wanted.and_then(|text| text.parse().ok()).unwrap_or(RUNS)
}

fn run(leases: &'static [u32], weather: &'static Weather) {
    let runs = runs();
    let mut terms = 0;
    let mut extended = 0;
    let mut unwritten = 0;
    for seed in 0..runs {
        let mut stage = Stage::new(seed, leases, weather);
        for _ in 0..TICKS {
            stage.tick();
        }
        stage.disturbed = false;
        stage.away = 0;
        for pod in &mut stage.pods {
            pod.away = 0;
        }
        for _ in 0..(CALM + ABANDONED * 1100) / TICK {
            stage.tick();
        }
        let leaders = stage
            .pods
            .iter()
            .filter(|pod| pod.answers(stage.now))
            .count();
        assert_eq!(leaders, 1, "no leader in run {seed} after a calm time");
        let wrote = stage.wrote;
        for _ in 0..QUIET * 1000 / TICK {
            stage.tick();
        }
        let wrote = stage.wrote - wrote;
        assert!(
            wrote <= QUIET / 5 + QUIET / 50,
            "{wrote} writes in {QUIET} calm seconds of run {seed}"
        );
        terms += stage.terms;
        extended += stage.extended;
        unwritten += stage.unwritten;
    }
    println!(
        "Leases of {leases:?} s: {runs} runs of {} s, {terms} terms, {extended} times extended by promises, {unwritten} requests without a write",
        TICKS * TICK / 1000
    );
    assert!(
        terms > 3 * runs && extended > 10 * runs && unwritten > 10 * runs,
        "only {terms} terms, {extended} promises, {unwritten} requests: the model is too calm"
    );
}

#[test]
fn two_masters_never_serve_at_one_time_and_a_calm_set_has_one() {
    run(&[8], &CRASHES);
}

#[test]
fn the_same_is_true_with_the_shortest_lease() {
    run(&[5], &CRASHES);
}

#[test]
fn the_same_is_true_while_pods_with_different_leases_follow_each_other() {
    run(&[5, 6, 8, 15, 60], &CRASHES);
}

#[test]
fn the_same_is_true_with_an_api_server_that_is_often_away() {
    run(&[5, 8], &OUTAGES);
}
