package org.apache.spark.sql.lamina.wire

import java.net.ServerSocket
import java.util.concurrent.{Callable, Executors, TimeUnit}

import scala.util.{Failure, Try}

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.sql.lamina.errors.LaminaError

/** Calls to an engine that takes connections and says nothing: it is stopped, or out of file descriptors. */
class ControlSuite extends AnyFunSuite {
  private val Callers = 8

  /** What callers of `control` get, after `meanwhile`. */
  private def answers(control: Control)(meanwhile: => Unit): Seq[Try[Any]] = {
    val pool = Executors.newFixedThreadPool(Callers, DaemonThreads("caller"))
    try {
      val call: Callable[Try[Any]] = () => Try(control.call("stats", Nil))
      val calls = Seq.fill(Callers)(pool.submit(call))
      meanwhile
      calls.map(_.get(120, TimeUnit.SECONDS))
    } finally {
      pool.shutdownNow()
      control.close()
    }
  }

  private def withSilentEngine(body: ServerSocket => Unit): Unit = {
    val silent = new ServerSocket(0, 50, Control.Loopback)
    try body(silent)
    finally silent.close()
  }

  private def kinds(of: Seq[Try[Any]]): Set[String] = of.map {
    case Failure(error: LaminaError) => error.kind
    case other => fail(s"answered $other")
  }.toSet

  test("a caller that gets no greeting fails at its deadline") {
    withSilentEngine { engine =>
      assert(kinds(answers(new Control(engine.getLocalPort, "token", 500L))(())) == Set(LaminaError.EngineDeadline))
    }
  }

  test("a caller that waits for its greeting keeps no other one from connecting") {
    withSilentEngine { engine =>
      engine.setSoTimeout(30000)
      val found = answers(new Control(engine.getLocalPort, "token", 100000L)) {
        // all are here before the first one has got an answer
        Seq.fill(Callers)(engine.accept()).foreach(_.close())
      }
      assert(kinds(found) == Set(LaminaError.EngineProtocol))
    }
  }
}
