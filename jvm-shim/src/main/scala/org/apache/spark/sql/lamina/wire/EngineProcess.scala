package org.apache.spark.sql.lamina.wire

import java.io.{BufferedReader, File, IOException, InputStreamReader}
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Path, Paths}
import java.security.SecureRandom
import java.util.concurrent.{CompletableFuture, ExecutionException, TimeUnit, TimeoutException}

import org.json4s.{JObject, JValue}
import org.json4s.JsonAST.{JInt, JString}

import org.apache.spark.internal.Logging
import org.apache.spark.sql.lamina.errors.LaminaError

/** What the engine said when it started. */
private[wire] final case class Greeting(py4jPort: Int, socket: Path, pid: Long, engineVersion: String)

/**
 * The operating system's side of one engine: start, handshake on the standard streams, death, and what it leaves
 * behind.
 *
 * The end of standard input ends the engine, so that it never outlives this JVM. A watcher waits for its death, however
 * it comes about, tells `onExit`, ends the engine's own maintenance process if that is still there, and deletes
 * the private directory.
 */
private[wire] final class EngineProcess private (
    settings: ProcessSettings,
    directory: PrivateDirectory,
    process: Process,
    val token: String,
    hadoop: HadoopFiles,
    generation: Long
) extends Logging {
  import EngineProcess._

  private val errors = new EngineLog(process.getErrorStream, s"lamina-engine-$generation-log")
  private val firstLine = new CompletableFuture[String]
  private val output = DaemonThreads.start(s"lamina-engine-$generation-output")(readOutput())
  private val exited = new CompletableFuture[Unit]
  private val cleaned = new CompletableFuture[Unit]
  @volatile private var socket: Option[Path] = None
  @volatile private var maintenance: Option[ProcessHandle] = None

  def pid: Long = process.pid
  def isAlive: Boolean = process.isAlive
  def logTail: String = errors.tail

  private def readOutput(): Unit = {
    val reader = new BufferedReader(new InputStreamReader(process.getInputStream, UTF_8))
    try {
      firstLine.complete(reader.readLine())
      // nothing more is expected; read on, so that a stray print can never block the engine
      Iterator.continually(reader.readLine()).takeWhile(_ != null).foreach(line => logInfo(line.take(LineLength)))
    } catch { case error: IOException => firstLine.completeExceptionally(error); () }
    finally reader.close()
  }

  private def handshake(): Greeting = {
    try {
      val hello = JObject(
        "token" -> JString(token),
        "directory" -> JString(directory.path.toString),
        "shim_version" -> JString(Protocol.shimVersion),
        "protocol" -> JInt(Protocol.Version),
        "jvm_pid" -> JInt(ProcessHandle.current.pid),
        "hadoop_socket" -> JString(hadoop.socket.toString),
        "process" -> JObject(settings.raw.toList.sorted.map { case (key, value) => key -> JString(value) })
      )
      process.getOutputStream.write((Protocol.text(hello) + "\n").getBytes(UTF_8))
      process.getOutputStream.flush()
    } catch { case _: IOException => () /* it has ended already; the missing answer tells why */ }
    val line =
      try firstLine.get(settings.startTimeoutMs, TimeUnit.MILLISECONDS)
      catch {
        case _: TimeoutException =>
          throw startError(
            s"did not answer within ${settings.startTimeoutMs} ms",
            s"raise ${Key}engine.startTimeoutMs if the machine is slow"
          )
        case _: ExecutionException => null
      }
    if (line == null) throw endedEarly()
    val answer =
      try Protocol.parse(line)
      catch { case _: LaminaError => throw startError(s"answered '${line.take(200)}'", "see its log") }
    greeting(Protocol.answer(answer))
  }

  private def greeting(answer: JValue): Greeting = {
    (answer \ "py4j_port", answer \ "socket", answer \ "pid", answer \ "engine_version", answer \ "protocol") match {
      case (JInt(port), JString(path), JInt(pid), JString(version), JInt(protocol)) =>
        socket = Some(Paths.get(path))
        if (protocol != Protocol.Version || version != Protocol.shimVersion) throw versionError(version, protocol.toInt)
        Greeting(port.toInt, Paths.get(path), pid.toLong, version)
      case _ => throw startError(s"answered '${Protocol.text(answer).take(200)}'", "see its log")
    }
  }

  private def versionError(engine: String, protocol: Int): LaminaError = {
    val shim = Protocol.shimVersion
    val advice =
      if (VersionOrder.compare(engine, shim) > 0)
        s"upgrade the shim: use the lamina jar of version $engine (--packages or spark.jars)"
      else if (engine != shim)
        s"upgrade the engine: install the wheel of lamina $shim for ${settings.python}, or remove that lamina, since the " +
          "jar carries one"
      else "install the wheel and the jar of the same release"
    new LaminaError(
      LaminaError.VersionEngine,
      s"the engine that ${settings.python} runs is lamina $engine (wire protocol $protocol), the shim in this JVM is " +
        s"$shim (wire protocol ${Protocol.Version}); $advice"
    )
  }

  private def endedEarly(): LaminaError = {
    process.waitFor(ExitWaitMs, TimeUnit.MILLISECONDS)
    errors.awaitEnd(ExitWaitMs)
    MissingModule.findFirstMatchIn(logTail).map(_.group(1)) match {
      case Some(module) if Dependencies(module) =>
        new LaminaError(
          LaminaError.EngineDependency,
          s"the engine needs the Python package $module, which ${settings.python} does not have; install it on every " +
            s"executor: ${settings.python} -m pip install $module"
        )
      case Some("lamina") =>
        startError(
          s"found no Python package lamina (PYTHONPATH: ${settings.pythonPath.mkString(File.pathSeparator)})",
          s"use a jar of the wheel, which carries it, or install the wheel for ${settings.python}"
        )
      case _ => startError(s"ended at once with ${exit(process.exitValue)}", "see its log")
    }
  }

  private def startError(what: String, advice: String): LaminaError = {
    val tail = if (logTail.isEmpty) "" else s"; its last words:\n$logTail"
    new LaminaError(
      LaminaError.EngineStart,
      s"the engine (${settings.python} -m lamina.engine) $what; $advice. Its interpreter is set by " +
        s"${Key}engine.python, else spark.pyspark.python, else PYSPARK_PYTHON in this JVM's own environment$tail"
    )
  }

  /** From now on the watcher ends `pid` if it outlives the engine; never another process that got the same id. */
  def ownsMaintenance(pid: Long): Unit = maintenance = ProcessHandle.of(pid).toScala

  /** Lets `action` run once as soon as the process has ended. */
  def onExit(action: () => Unit): Unit = {
    exited.thenRun(() => DaemonThreads.guarded("What follows the end of the engine")(action())); ()
  }

  private def watch(): Unit = {
    DaemonThreads.start(s"lamina-engine-$generation-watch") {
      try {
        process.waitFor()
        exited.complete(())
        maintenance.foreach { handle =>
          try handle.onExit.get(MaintenanceWaitMs, TimeUnit.MILLISECONDS)
          catch { case _: TimeoutException => handle.destroyForcibly() }
        }
      } finally cleanUp()
    }
    ()
  }

  private def cleanUp(): Unit = {
    try process.getOutputStream.close()
    catch { case _: IOException => () }
    try {
      hadoop.close()
      directory.delete(socket)
    } finally cleaned.complete(())
    ()
  }

  /** Why the process ended, for an error message; waits a little, since a closed socket is seen before the exit. */
  def lostReason(): Option[String] =
    try {
      process.waitFor(ExitWaitMs, TimeUnit.MILLISECONDS)
      if (!isAlive) errors.awaitEnd(ExitWaitMs / 4)
      ended()
    } catch {
      case _: InterruptedException =>
        Thread.currentThread.interrupt()
        ended()
    }

  private def ended(): Option[String] =
    if (isAlive) None
    else {
      val tail = if (logTail.isEmpty) "" else s"; its last words:\n$logTail"
      Some(s"the engine process ${process.pid} ended with ${exit(process.exitValue)}$tail")
    }

  /** Ends the process: by the end of its standard input, and by force when that takes longer than `graceMs`. */
  def stop(graceMs: Long): Unit = {
    try process.getOutputStream.close()
    catch { case _: IOException => () }
    if (!process.waitFor(graceMs, TimeUnit.MILLISECONDS)) process.destroyForcibly()
    try cleaned.get(graceMs + MaintenanceWaitMs, TimeUnit.MILLISECONDS)
    catch { case _: TimeoutException => logWarning(s"the engine process ${process.pid} does not end") }
    output.join(ExitWaitMs)
    errors.awaitEnd(ExitWaitMs)
  }
}

private[wire] object EngineProcess extends Logging {
  private val Key = "spark.sql.streaming.stateStore.lamina."
  private val ExitWaitMs = 1000L
  private val MaintenanceWaitMs = 2000L
  private val SignalBase = 128
  private val LineLength = 2000
  private val Dependencies = Set("pyarrow", "fsspec", "py4j")
  private val MissingModule = "No module named '?(\\w+)".r

  private val random = new SecureRandom

  /** Starts an engine and shakes hands. */
  def start(settings: ProcessSettings, generation: Long): (EngineProcess, Greeting) = {
    val directory = PrivateDirectory.create(settings.tempDir)
    val token = newToken()
    val hadoop =
      try HadoopFiles.listen(directory, token, s"lamina-engine-$generation")
      catch { case error: Throwable => directory.delete(None); throw error }
    val process =
      try builder(settings, directory.path).start()
      catch {
        case error: IOException =>
          hadoop.close()
          directory.delete(None)
          throw new LaminaError(
            LaminaError.EngineStart,
            s"the engine cannot be started: ${error.getMessage}. Set ${Key}engine.python (or spark.pyspark.python, " +
              "or spark.executorEnv.PYSPARK_PYTHON) to a Python of version 3.10 or newer that exists on every executor",
            error
          )
      }
    val engine = new EngineProcess(settings, directory, process, token, hadoop, generation)
    engine.watch()
    try {
      val greeting = engine.handshake()
      logInfo(s"started engine ${greeting.engineVersion}, process ${greeting.pid}, generation $generation")
      (engine, greeting)
    } catch {
      case error: Throwable =>
        // an interrupted task must not leave the process behind either
        val interrupted = Thread.interrupted()
        process.destroyForcibly()
        engine.stop(ExitWaitMs)
        if (interrupted) Thread.currentThread.interrupt()
        throw error
    }
  }

  private def builder(settings: ProcessSettings, directory: Path): ProcessBuilder = {
    // a relative path is relative to the JVM's directory, not to the engine's
    def absolute(path: String): String = Paths.get(path).toAbsolutePath.toString
    val python = if (settings.python.contains(File.separator)) absolute(settings.python) else settings.python
    val builder = new ProcessBuilder(python, "-m", "lamina.engine")
    // not the JVM's directory: `-m` puts the working directory first on the module path
    builder.directory(directory.toFile)
    val inherited = Option(builder.environment.get("PYTHONPATH")).toSeq.flatMap(_.split(File.pathSeparator))
    val pythonPath = (settings.pythonPath ++ inherited).filter(_.nonEmpty).map(absolute).distinct
    builder.environment.put("PYTHONPATH", pythonPath.mkString(File.pathSeparator))
    // what threads of the engine give back would stay in arenas of the GNU C library, one a thread
    builder.environment.putIfAbsent("MALLOC_ARENA_MAX", "2")
    builder
  }

  private def newToken(): String = {
    val bytes = new Array[Byte](32)
    random.nextBytes(bytes)
    bytes.iterator.map(byte => f"${byte & 0xff}%02x").mkString
  }

  private def exit(code: Int): String = code - SignalBase match {
    case 9 => s"exit code $code (SIGKILL: often the machine or the container ran out of memory)"
    case signal if signal > 0 && signal < 65 => s"exit code $code (signal $signal)"
    case _ => s"exit code $code"
  }

  private implicit final class OptionalOps[T](optional: java.util.Optional[T]) {
    def toScala: Option[T] = if (optional.isPresent) Some(optional.get) else None
  }

  /** Order of versions such as 0.10.1 and 0.9.0.dev1: by their numbers. */
  private object VersionOrder {
    def compare(left: String, right: String): Int = {
      def numbers(version: String): Seq[Int] = version.split("[.+-]").toSeq.map(_.takeWhile(_.isDigit)).map { digits =>
        if (digits.isEmpty) -1 else digits.take(9).toInt
      }
      numbers(left).zipAll(numbers(right), 0, 0).map { case (a, b) => a.compare(b) }.find(_ != 0).getOrElse(0)
    }
  }
}
