// Local files behind the latency of an object store, for every store that writes through Hadoop.
//
// A file is one PUT: its close takes a time drawn from a distribution, and a rename takes none. Only files below a
// directory `state` are slow, so that Spark's own offsets and commit entries are slow for no store. Reads take no time.
package lamina.benchmarks.slow

import java.net.URI
import java.nio.charset.StandardCharsets.UTF_8
import java.nio.file.{Files, Path => LocalPath, Paths, StandardOpenOption}
import java.util.Random

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.fs.permission.FsPermission
import org.apache.hadoop.fs.{FSDataInputStream, FSDataOutputStream, Path, RawLocalFileSystem}
import org.apache.hadoop.util.Progressable

/** Seconds of a PUT, between two points of the distribution by their logarithms; seeded. */
final class PutLatency(points: IndexedSeq[(Double, Double)], seed: Long) {
  private val random = new Random(seed)

  def next(): Double = {
    val share = synchronized(random.nextDouble())
    val last = points.indexWhere(_._1 >= share) max 1
    val ((low, fast), (high, slow)) = (points(last - 1), points(last))
    math.exp(math.log(fast) + (math.log(slow) - math.log(fast)) * (share - low) / (high - low))
  }
}

object PutLatency {
  /** From `share:seconds,share:seconds,...`. */
  def parse(text: String, seed: Long): PutLatency = new PutLatency(
    text.split(",").map(_.split(":")).map(point => (point(0).toDouble, point(1).toDouble)).toIndexedSeq,
    seed
  )
}

/** What all instances in this JVM share. */
object SlowFiles {
  /** What latencies are multiplied by from now on; none until the driver, in one JVM with its tasks, sets it. */
  @volatile private var scale = 0.0

  private var latency: Option[PutLatency] = None
  private var trace: Option[LocalPath] = None

  def setScale(factor: Double): Unit = scale = factor

  def configure(conf: Configuration): Unit = synchronized {
    if (latency.isEmpty) latency = Some(PutLatency.parse(conf.get("fs.slow.put"), conf.getLong("fs.slow.seed", 1L)))
    if (trace.isEmpty)
      trace = Some(Paths.get(conf.get("fs.slow.trace")).resolve(s"${ProcessHandle.current().pid()}.trace"))
  }

  /** Waits for as long as a PUT takes, and notes it. */
  def put(file: Path): Unit = {
    val factor = if (file.toUri.getPath.contains("/state/")) scale else 0.0
    val seconds = if (factor == 0.0) 0.0 else factor * latency.get.next()
    if (seconds > 0.0) Thread.sleep((seconds * 1000).toLong, (seconds * 1e9 % 1e6).toInt)
    note("PUT", file, seconds)
  }

  def note(operation: String, file: Path, seconds: Double): Unit = synchronized {
    trace.foreach { log =>
      val line = s"$operation $seconds ${file.toUri.getPath}\n"
      Files.write(log, line.getBytes(UTF_8), StandardOpenOption.CREATE, StandardOpenOption.APPEND)
    }
  }
}

/** Local files as `slow:///path`. */
final class SlowFileSystem extends RawLocalFileSystem {
  override def getUri: URI = URI.create("slow:///")
  override def getScheme: String = "slow"

  override def initialize(uri: URI, conf: Configuration): Unit = {
    SlowFiles.configure(conf)
    super.initialize(uri, conf)
  }

  override def open(file: Path, bufferSize: Int): FSDataInputStream = {
    SlowFiles.note("GET", file, 0.0)
    super.open(file, bufferSize)
  }

  override def create(
      file: Path,
      overwrite: Boolean,
      bufferSize: Int,
      replication: Short,
      blockSize: Long,
      progress: Progressable): FSDataOutputStream =
    put(file, super.create(file, overwrite, bufferSize, replication, blockSize, progress))

  override def create(
      file: Path,
      permission: FsPermission,
      overwrite: Boolean,
      bufferSize: Int,
      replication: Short,
      blockSize: Long,
      progress: Progressable): FSDataOutputStream =
    put(file, super.create(file, permission, overwrite, bufferSize, replication, blockSize, progress))

  private def put(file: Path, out: FSDataOutputStream): FSDataOutputStream = out match {
    case slow: SlowOutput => slow // one of the two calls the other
    case _ => new SlowOutput(file, out)
  }
}

final class SlowOutput(file: Path, out: FSDataOutputStream) extends FSDataOutputStream(out, null) {
  private var closed = false

  override def close(): Unit = if (!closed) {
    closed = true
    SlowFiles.put(file)
    super.close()
  }
}
