// Who used how much processor time in this JVM and its processes so far, by Linux's account of them in /proc.
package lamina.benchmarks.restore

import java.nio.file.{Files, Path, Paths}

import scala.jdk.CollectionConverters._
import scala.util.Using

/** Milliseconds of processor time by who used them. */
final case class Processor(ms: Map[String, Long]) {
  def -(other: Processor): Processor =
    Processor(ms.map { case (who, used) => who -> (used - other.ms.getOrElse(who, 0L)) })

  def json: String = ms.toSeq.sorted.map { case (who, used) => s""""$who": $used""" }.mkString("{", ", ", "}")
}

object Processor {
  private val TickMs = 10L
  private val Jvm = Seq("Executor task" -> "tasks", "C1 Comp" -> "compilers", "C2 Comp" -> "compilers")
  private val TasksInKernel = "tasks in the kernel"
  private val Others = "other threads of the JVM"

  def now(): Processor = {
    val threads = entries(Paths.get("/proc/self/task")).flatMap(stat).flatMap { case (name, user, kernel) =>
      val who = Jvm.collectFirst { case (start, who) if name.startsWith(start) => who }.getOrElse(Others)
      if (who == "tasks") Seq(who -> user, TasksInKernel -> kernel) else Seq(who -> (user + kernel))
    }
    val processes = ProcessHandle.current.descendants.iterator.asScala.toSeq.flatMap { process =>
      val proc = Paths.get(s"/proc/${process.pid}")
      val command = read(proc.resolve("cmdline")).getOrElse("")
      val who = if (command.contains("engine.maintenance")) "maintenance" else "engine"
      if (!command.contains("lamina.engine")) None
      else stat(proc).map { case (_, user, kernel) => who -> (user + kernel) }
    }
    Processor((threads ++ processes).groupMapReduce(_._1)(_._2)(_ + _))
  }

  private def read(path: Path): Option[String] =
    Using(Files.newInputStream(path))(in => new String(in.readAllBytes)).toOption

  private def entries(path: Path): Seq[Path] = Using.resource(Files.list(path))(_.iterator.asScala.toSeq)

  /** Name, and milliseconds in user mode and in the kernel; none where it has ended. */
  private def stat(of: Path): Option[(String, Long, Long)] =
    read(of.resolve("stat")).map { line =>
      val (start, end) = (line.indexOf('('), line.lastIndexOf(')'))
      val fields = line.substring(end + 2).split(' ')
      (line.substring(start + 1, end), fields(11).toLong * TickMs, fields(12).toLong * TickMs)
    }
}
