package org.apache.spark.sql.lamina

import java.lang.management.ManagementFactory
import java.nio.charset.StandardCharsets
import java.nio.file.{Files, Path, Paths}

import scala.util.Try

import org.apache.spark.SparkConf
import org.apache.spark.network.util.JavaUtils
import org.apache.spark.sql.lamina.errors.LaminaError

/**
 * Memory that a process of this machine may take, in bytes.
 *
 * @param limit of the container, or the machine's physical memory where there is no container
 * @param container whether `limit` is a container's
 * @param jvmHeap greatest size of the Java heap
 */
final case class Machine(limit: Long, container: Boolean, jvmHeap: Long)

object Machine {

  /** Files in which cgroups say the limit, version 2 first. */
  private val limitFiles = Seq("memory.max", "memory/memory.limit_in_bytes")

  def current(): Machine = {
    val physical = ManagementFactory.getOperatingSystemMXBean match {
      case system: com.sun.management.OperatingSystemMXBean => system.getTotalMemorySize
      case _ => Long.MaxValue
    }
    of(Paths.get("/sys/fs/cgroup"), physical, Runtime.getRuntime.maxMemory)
  }

  /**
   * @param cgroups where the control groups of this process are mounted
   * @param physical memory of the machine, in bytes
   */
  private[lamina] def of(cgroups: Path, physical: Long, jvmHeap: Long): Machine = {
    // "max", and the huge number that version 1 gives, mean that there is no limit.
    val limit = limitFiles.iterator.map(cgroups.resolve(_)).flatMap(read).find(_ < physical)
    Machine(limit.getOrElse(physical), limit.isDefined, jvmHeap)
  }

  private def read(file: Path): Option[Long] =
    Try(new String(Files.readAllBytes(file), StandardCharsets.US_ASCII).trim.toLong).toOption
}

/**
 * How much memory outside the Java heap the tables of an executor may take.
 *
 * Beside the tables live the engine, its maintenance process, Python workers and Spark's own buffers, so `auto` takes a
 * part of what the Java heap leaves: all but `Reserved`, or half where that is more. A budget whose other half the
 * engine alone would fill is refused.
 */
object HeapCap {
  private val OverheadKey = "spark.executor.memoryOverhead"
  private val HeapKeys = "spark.executor.memory (spark.driver.memory in local mode)"
  private val RaiseLimit = s"raise $OverheadKey or the container's limit"

  private val Local = raw"local(\[.*])?".r

  /** Kept for the engine, its maintenance process and buffers. */
  private val Reserved = 640L << 20

  /** What the engine and its maintenance process take at least. */
  private val LeastReserved = 256L << 20

  /** Below this, a store is of no use. */
  private val Least = 64L << 20

  /**
   * The cap in bytes.
   *
   * @param setting value of the setting `name`, if set
   * @param taken what other tables of this JVM have by a cap of their own: the setting's name, and bytes
   * @throws LaminaError `memory.cap` if the cap does not fit beside the Java heap or in the overhead that was asked for,
   *   or if these leave none; `settings.invalid` if it is no size
   */
  def resolve(
      setting: Option[String],
      conf: SparkConf,
      machine: Machine,
      name: String = "heap.maxBytes",
      taken: Option[(String, Long)] = None
  ): Long =
    chosen(setting) match {
      case Some(text) => explicit(StoreSettings.Prefix + name, text, askedOverhead(conf), machine, taken)
      case None =>
        val overhead = askedOverhead(conf).orElse(if (machine.container) None else defaultOverhead(conf))
        derived(StoreSettings.Prefix + name, overhead, machine, taken)
    }

  /** What somebody has set a cap to, where that is not `auto`. */
  private[lamina] def chosen(setting: Option[String]): Option[String] =
    setting.map(_.trim).filterNot(_.equalsIgnoreCase("auto"))

  /**
   * What Spark asks YARN or Kubernetes for beside the Java heap where the user asked for nothing. Where no control group
   * holds a container to its limit, as on YARN, the manager ends the executor above it.
   */
  private def defaultOverhead(conf: SparkConf): Option[Long] = {
    def mib(key: String, default: String): Long = JavaUtils.byteStringAsMb(conf.get(key, default))
    val managed = Seq("yarn", "k8s://").exists(conf.get("spark.master", "").startsWith(_))
    val isDriver = conf.get("spark.executor.id", "") == "driver"
    if (!managed || isDriver) None
    else
      Try {
        val factor = conf.getOption("spark.executor.memoryOverheadFactor")
          .orElse(conf.getOption("spark.kubernetes.memoryOverheadFactor")).fold(0.1)(_.toDouble)
        val share = (mib("spark.executor.memory", "1g") * factor).toLong
        math.max(share, mib("spark.executor.minMemoryOverhead", "384m")) << 20
      }.toOption
  }

  /**
   * What the user asked the cluster manager for, beside the Java heap. In local mode there is no executor that could
   * have it.
   */
  private def askedOverhead(conf: SparkConf): Option[Long] =
    conf.getOption(OverheadKey).filterNot(_ => Local.matches(conf.get("spark.master", "")))
      .flatMap(text => Try(JavaUtils.byteStringAsMb(text) << 20).toOption)

  private def explicit(
      key: String,
      text: String,
      overhead: Option[Long],
      machine: Machine,
      taken: Option[(String, Long)]
  ): Long = {
    val bytes = Try(JavaUtils.byteStringAsBytes(text)).getOrElse(
      throw new LaminaError(LaminaError.SettingsInvalid, s"$key is '$text'; expected auto or a size such as 2g")
    )
    val left = machine.limit - machine.jvmHeap
    val (others, beside) = taken.fold((0L, "")) { case (name, has) =>
      (has, s" together with ${StoreSettings.Prefix}$name of ${mib(has)}, which this JVM has too,")
    }
    if (bytes + others > left) {
      val (limit, raise) =
        if (machine.container) ("the container's limit", s"$RaiseLimit, ") else ("the machine's memory", "")
      throw new LaminaError(
        LaminaError.MemoryCap,
        s"$key is ${mib(bytes)}, but$beside $limit of ${mib(machine.limit)} leaves ${mib(left)} beside the Java heap of " +
          s"${mib(machine.jvmHeap)}; ${raise}lower $HeapKeys, or lower $key"
      )
    }
    overhead.filter(bytes + others > _).foreach { asked =>
      throw new LaminaError(
        LaminaError.MemoryCap,
        s"$key is ${mib(bytes)}, but$beside $OverheadKey, which it is a part of, is ${mib(asked)}; raise $OverheadKey, or " +
          s"lower $key"
      )
    }
    bytes
  }

  private def derived(
      key: String,
      overhead: Option[Long],
      machine: Machine,
      taken: Option[(String, Long)]
  ): Long = {
    val others = taken.fold(0L)(_._2)
    val left = machine.limit - machine.jvmHeap
    val budget = overhead.fold(left)(math.min(_, left)) - others
    val cap = math.max(budget - Reserved, budget / 2)
    if (cap < Least || budget - cap < LeastReserved) {
      throw new LaminaError(
        LaminaError.MemoryCap,
        s"no memory is left for state: of ${mib(machine.limit)} the Java heap takes ${mib(machine.jvmHeap)}" +
          overhead.fold("")(bytes => s" and $OverheadKey is ${mib(bytes)}") +
          taken.fold("") { case (name, has) => s", ${StoreSettings.Prefix}$name has ${mib(has)}" } +
          s", and the engine takes ${mib(LeastReserved)} or more; lower $HeapKeys, " +
          (if (machine.container || overhead.isDefined) s"$RaiseLimit, " else "") + s"or set $key"
      )
    }
    cap
  }

  private def mib(bytes: Long): String = s"${bytes >> 20} MiB"
}
