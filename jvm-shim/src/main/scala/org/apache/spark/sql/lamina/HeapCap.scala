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
  private val limitFiles = Seq("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")

  def current(): Machine = {
    val physical = ManagementFactory.getOperatingSystemMXBean match {
      case system: com.sun.management.OperatingSystemMXBean => system.getTotalMemorySize
      case _ => Long.MaxValue
    }
    // "max", and the huge number that version 1 gives, mean that there is no limit.
    val limit = limitFiles.iterator.map(Paths.get(_)).flatMap(read).find(_ < physical)
    Machine(limit.getOrElse(physical), limit.isDefined, Runtime.getRuntime.maxMemory)
  }

  private def read(file: Path): Option[Long] =
    Try(new String(Files.readAllBytes(file), StandardCharsets.US_ASCII).trim.toLong).toOption
}

/**
 * How much memory outside the Java heap the tables of an executor may take.
 *
 * Beside the tables live the engine, its maintenance process, Python workers and Spark's own buffers, so `auto` takes a
 * part of what the Java heap leaves.
 */
object HeapCap {
  private val Key = StoreSettings.Prefix + "heap.maxBytes"

  /** Kept for the engine, its maintenance process and buffers. */
  private val Reserved = 640L << 20

  /** Below this, a store is of no use. */
  private val Least = 64L << 20

  /**
   * The cap in bytes.
   *
   * @param setting value of `heap.maxBytes`, if set
   * @throws LaminaError `memory.cap` if the cap does not fit in the container, `settings.invalid` if it is no size
   */
  def resolve(setting: Option[String], conf: SparkConf, machine: Machine): Long =
    setting.map(_.trim).filterNot(_.equalsIgnoreCase("auto")) match {
      case Some(text) => explicit(text, machine)
      case None => derived(conf, machine)
    }

  private def explicit(text: String, machine: Machine): Long = {
    val bytes = Try(JavaUtils.byteStringAsBytes(text)).getOrElse(
      throw new LaminaError(LaminaError.SettingsInvalid, s"$Key is '$text'; expected auto or a size such as 2g")
    )
    if (machine.container && bytes > machine.limit - machine.jvmHeap) {
      throw new LaminaError(
        LaminaError.MemoryCap,
        s"$Key is ${mib(bytes)}, but the container's limit of ${mib(machine.limit)} leaves " +
          s"${mib(machine.limit - machine.jvmHeap)} beside the Java heap of ${mib(machine.jvmHeap)}; raise " +
          s"spark.executor.memoryOverhead, lower spark.executor.memory, or lower $Key"
      )
    }
    bytes
  }

  private def derived(conf: SparkConf, machine: Machine): Long = {
    val left = machine.limit - machine.jvmHeap
    val overhead = conf.getOption("spark.executor.memoryOverhead").flatMap(text =>
      Try(JavaUtils.byteStringAsMb(text) << 20).toOption
    )
    val budget = overhead.fold(left)(math.min(_, left))
    val cap = math.max(budget - Reserved, budget / 2)
    if (cap < Least) {
      throw new LaminaError(
        LaminaError.MemoryCap,
        s"no memory is left for state: of ${mib(machine.limit)} the Java heap takes ${mib(machine.jvmHeap)}" +
          overhead.fold("")(bytes => s" and spark.executor.memoryOverhead is ${mib(bytes)}") +
          s"; lower spark.executor.memory (spark.driver.memory in local mode), raise spark.executor.memoryOverhead, " +
          s"or set $Key"
      )
    }
    cap
  }

  private def mib(bytes: Long): String = s"${bytes >> 20} MiB"
}
