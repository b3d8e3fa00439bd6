//! An exchange, stepped by hand or with its thread, and two engines.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sluice_engine_sdk::wire::ToEngine;
use sluice_transfer::exchange::{
    Answer, Clock, CommandError, Exchange, Handle, HostFabric, Running, StopError, Stopped,
};
use sluice_transfer::fabric::{Fault, LocalFabric, Post, ShmFabric, ShmSettings};
use sluice_transfer::protocol::limits::Limits;
use sluice_transfer::protocol::{Direction, HoldEnd, Peer, Tokens, Verb};

use crate::engine::{Engine, Job};
use crate::kv::{DECODE, LAYERS, PREFILL};

/// Far beyond what any of it takes.
pub const PATIENCE: Duration = Duration::from_secs(60);
/// The same, in steps of a millisecond: beyond every deadline of the protocol.
const MAX_STEPS: u32 = 200_000;

/// Who drives it.
pub enum Driver {
    Hand(Box<Exchange>),
    Thread(Running),
}

pub struct World {
    pub driver: Driver,
    pub handle: Handle,
    pub now_ms: u64,
    pub prefill: Engine,
    pub decode: Engine,
    jobs: u128,
}

pub fn clock() -> Clock {
    #[expect(clippy::disallowed_methods, reason = "the thread's clock is the real one")]
    let start = Instant::now();
    Arc::new(move || start.elapsed().as_millis() as u64)
}

impl World {
    pub fn stepped(faults: impl FnMut(&Post) -> Fault + Send + 'static) -> Self {
        let (exchange, handle) = Exchange::new(Arc::new(LocalFabric::new(faults)), Limits::default());
        Self::with(Driver::Hand(Box::new(exchange)), handle)
    }

    pub fn threaded(settings: ShmSettings) -> Self {
        let fabric: Arc<dyn HostFabric> = Arc::new(ShmFabric::start(settings).unwrap());
        let running = Exchange::start(fabric, Limits::default(), clock()).unwrap();
        let handle = running.handle().clone();
        Self::with(Driver::Thread(running), handle)
    }

    pub fn with(driver: Driver, handle: Handle) -> Self {
        let prefill = Engine::attach(&handle, 1, 1, PREFILL);
        let decode = Engine::attach(&handle, 2, 1, DECODE);
        Self { driver, handle, now_ms: 0, prefill, decode, jobs: 0 }
    }

    /// A new life of an engine takes the place of one that has left.
    pub fn restart(&mut self, peer: Peer) {
        let engine = if peer == self.prefill.peer { &mut self.prefill } else { &mut self.decode };
        *engine = Engine::attach(&self.handle, peer.engine.0, peer.incarnation + 1, engine.layout);
    }

    /// Stops the thread, if it is one.
    pub fn stop(self) -> (Result<(), StopError>, Engine, Engine) {
        let stopped = match self.driver {
            Driver::Thread(running) => running.stop(),
            Driver::Hand(exchange) => {
                drop(exchange);
                Ok(())
            }
        };
        (stopped, self.prefill, self.decode)
    }

    /// Source and sink of a direction.
    pub fn sides(&mut self, direction: Direction) -> (&mut Engine, &mut Engine) {
        match direction {
            Direction::PrefillToDecode => (&mut self.prefill, &mut self.decode),
            Direction::DecodeToPrefill => (&mut self.decode, &mut self.prefill),
        }
    }

    pub fn job(&mut self, verb: Verb, direction: Direction, tokens: u32) -> Job {
        self.jobs += 1;
        let number = self.jobs;
        let (source, sink) = self.sides(direction);
        Job::new(number, verb, direction, tokens, source, sink)
    }

    pub fn step(&mut self) {
        if let Driver::Hand(exchange) = &mut self.driver {
            self.now_ms += 1;
            exchange.step(self.now_ms);
            while self.prefill.hear(Duration::ZERO) {}
            while self.decode.hear(Duration::ZERO) {}
        }
    }

    /// Until an engine has heard what `until` waits for.
    pub fn wait(&mut self, direction: Direction, at_sink: bool, what: &str, until: impl Fn(&Engine) -> bool) {
        for _ in 0..MAX_STEPS {
            let (source, sink) = self.sides(direction);
            let engine = if at_sink { sink } else { source };
            if until(engine) {
                return;
            }
            match &self.driver {
                Driver::Hand(_) => self.step(),
                Driver::Thread(_) => {
                    let (source, sink) = self.sides(direction);
                    let engine = if at_sink { sink } else { source };
                    let heard = engine.hear(PATIENCE);
                    assert!(heard || until(engine), "{what} never came; told {:?}", engine.told);
                }
            }
        }
        panic!("{what} never came; prefill {:?} decode {:?}", self.prefill.told, self.decode.told);
    }

    pub fn answer<T>(&mut self, mut answer: Answer<T>) -> Result<T, Stopped> {
        loop {
            let at_most = if matches!(self.driver, Driver::Hand(_)) { Duration::ZERO } else { PATIENCE };
            if let Some(answer) = answer.wait(at_most) {
                return answer;
            }
            self.step();
        }
    }

    pub fn hold(&mut self, job: &Job) -> Result<(), CommandError> {
        let peer = self.sides(job.direction).0.peer;
        let answer = self.handle.hold(peer, job.hold()).unwrap();
        self.answer(answer).unwrap()
    }

    pub fn receive(&mut self, job: &Job) -> Result<(), CommandError> {
        let (source, sink) = self.sides(job.direction);
        let (from, to) = (source.peer, sink.peer);
        let answer = self.handle.receive(to, job.receive(from)).unwrap();
        self.answer(answer).unwrap()
    }

    /// One whole transfer, layer by layer, all bytes compared; its blocks are free at both sides afterwards.
    pub fn transfer(&mut self, verb: Verb, direction: Direction, tokens: u32, receive_first: bool) {
        let job = self.job(verb, direction, tokens);
        self.carry_out(&job, receive_first);
        let sink = self.sides(direction).1;
        assert_eq!(job.all_wrong(sink), 0, "{verb:?} {direction:?}");
        self.retire(&job);
    }

    /// A part of a transfer: its bytes are compared, and that no other byte of the sink was touched.
    pub fn transfer_part(
        &mut self,
        flow: (Verb, Direction),
        tokens: u32,
        wanted: Tokens,
        receive_first: bool,
    ) {
        const BLANK: u8 = 0xEE;
        let (verb, direction) = flow;
        let job = self.job(verb, direction, tokens);
        let job = job.of_part(wanted, self.sides(direction).1);
        let sink = self.sides(direction).1;
        sink.slabs.iter().for_each(|slab| slab.write(0, &vec![BLANK; slab.bytes() as usize]).unwrap());
        self.carry_out(&job, receive_first);
        let sink = self.sides(direction).1;
        assert_eq!(job.all_wrong(sink), 0, "{verb:?} {direction:?} {wanted:?}");
        job.blot(sink, BLANK);
        for slab in &sink.slabs {
            let mut bytes = vec![0; slab.bytes() as usize];
            slab.read(0, &mut bytes).unwrap();
            let touched = bytes.iter().filter(|byte| **byte != BLANK).count();
            assert_eq!(touched, 0, "{verb:?} {direction:?} {wanted:?}: bytes beside it");
        }
        self.retire(&job);
    }

    /// All of a transfer until its sink has it.
    fn carry_out(&mut self, job: &Job, receive_first: bool) {
        let Job { verb, direction, .. } = *job;
        if receive_first {
            self.receive(job).unwrap();
        }
        self.hold(job).unwrap();
        for layer in 0..LAYERS {
            job.compute(self.sides(direction).0, layer);
            if receive_first {
                let arrived = ToEngine::Arrived { attempt: job.attempt, rect: job.arrives(layer) };
                self.wait(direction, true, "a layer", |sink| sink.was_told(&arrived));
                assert_eq!(
                    job.wrong(self.sides(direction).1, layer),
                    0,
                    "layer {layer} of {verb:?} {direction:?}"
                );
            }
        }
        let source = self.sides(direction).0.peer;
        self.handle.filled(source, job.attempt.id).unwrap();
        if !receive_first {
            self.receive(job).unwrap();
        }
        self.wait(direction, true, "completion", |sink| sink.outcome(job.attempt).is_some());
        let (_, sink) = self.sides(direction);
        assert!(
            sink.was_told(&ToEngine::Completed { attempt: job.attempt }),
            "{verb:?} {direction:?}: {:?}",
            sink.told
        );
    }

    /// The sink frees what it got, and the source is told that it was delivered.
    fn retire(&mut self, job: &Job) {
        let direction = job.direction;
        self.sides(direction).1.free(&job.sink);
        let ended = ToEngine::HoldEnded { id: job.attempt.id, end: HoldEnd::Delivered };
        self.wait(direction, false, "the hold's end", |source| source.was_told(&ended) && source.used() == 0);
        assert_eq!((self.prefill.used(), self.decode.used()), (0, 0));
    }
}
