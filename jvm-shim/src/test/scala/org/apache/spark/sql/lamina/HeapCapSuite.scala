package org.apache.spark.sql.lamina

import java.nio.file.Files

import org.scalatest.funsuite.AnyFunSuite

import org.apache.spark.SparkConf
import org.apache.spark.sql.lamina.errors.LaminaError

/** How much memory the tables of an executor may take. */
class HeapCapSuite extends AnyFunSuite {
  private val gib = 1L << 30
  private val bare = new SparkConf(loadDefaults = false)
  private val container = Machine(limit = 8 * gib, container = true, jvmHeap = 4 * gib)

  test("auto takes a part of what the Java heap leaves") {
    val cap = HeapCap.resolve(None, bare, container)
    assert(cap > 2 * gib && cap < 4 * gib)
    assert(HeapCap.resolve(Some("auto"), bare, container) == cap)
  }

  test("auto takes no more than the overhead that the executor asked for") {
    val conf = bare.clone().set("spark.executor.memoryOverhead", "2g")
    assert(HeapCap.resolve(None, conf, container) < 2 * gib)
  }

  test("an overhead without a unit is in MiB, as in Spark") {
    val conf = bare.clone().set("spark.executor.memoryOverhead", "2048")
    val withUnit = bare.clone().set("spark.executor.memoryOverhead", "2g")
    assert(HeapCap.resolve(None, conf, container) == HeapCap.resolve(None, withUnit, container))
  }

  test("a heap that leaves nothing is refused with what to do") {
    val error = intercept[LaminaError](HeapCap.resolve(None, bare, container.copy(jvmHeap = 8 * gib)))
    assert(error.kind == LaminaError.MemoryCap)
    Seq("spark.executor.memory", "spark.executor.memoryOverhead", "heap.maxBytes").foreach(words =>
      assert(error.getMessage.contains(words))
    )
  }

  test("a set cap counts, with a unit or in bytes") {
    assert(HeapCap.resolve(Some("3g"), bare, container) == 3 * gib)
    assert(HeapCap.resolve(Some((3 * gib).toString), bare, container) == 3 * gib)
  }

  test("a set cap that does not fit beside the heap in the container is refused") {
    val error = refusal(Some("5g"), bare, container)
    Seq("5120 MiB", "the container's limit of 8192 MiB leaves 4096 MiB", "raise spark.executor.memoryOverhead")
      .foreach(words => assert(error.contains(words)))
    assert(HeapCap.resolve(Some("4g"), bare, container) == 4 * gib)
  }

  test("a set cap that does not fit beside the heap in the machine's memory is refused") {
    val error = refusal(Some("5g"), bare, container.copy(container = false))
    assert(error.contains("the machine's memory of 8192 MiB leaves 4096 MiB") && !error.contains("memoryOverhead"))
    assert(HeapCap.resolve(Some("4g"), bare, container.copy(container = false)) == 4 * gib)
  }

  test("a set cap above the overhead that the executor asked for is refused") {
    val conf = bare.clone().set("spark.executor.memoryOverhead", "2g")
    val error = refusal(Some("3g"), conf, container)
    Seq("3072 MiB", "2048 MiB", "raise spark.executor.memoryOverhead").foreach(words => assert(error.contains(words)))
    assert(HeapCap.resolve(Some("2g"), conf, container) == 2 * gib)
    assert(refusal(Some("3g"), conf.clone().set("spark.master", "local-cluster[2,1,1024]"), container) == error)
    val local = conf.clone().set("spark.master", "local[2]")
    assert(HeapCap.resolve(Some("3g"), local, container) == 3 * gib, "it is of executors, and there are none")
  }

  test("auto leaves the engine what it takes, or is refused with what to do") {
    for (mib <- 0 to 4096 by 64) {
      val conf = bare.clone().set("spark.executor.memoryOverhead", s"${mib}m")
      if (mib < 512) assert(refusal(None, conf, container).contains("raise spark.executor.memoryOverhead"))
      else {
        val cap = HeapCap.resolve(None, conf, container) >> 20
        assert(cap >= 64 && mib - cap >= 256 && (mib - cap >= 640 || cap == mib / 2))
      }
    }
  }

  test("without a limit of the container the cap on YARN follows from Spark's own default of the overhead") {
    val machine = Machine(limit = 256 * gib, container = false, jvmHeap = 16 * gib)
    val yarn = bare.clone().set("spark.master", "yarn").set("spark.executor.memory", "16g")
    def asked(overhead: String): Long =
      HeapCap.resolve(None, yarn.clone().set("spark.executor.memoryOverhead", overhead), machine)
    assert(HeapCap.resolve(None, yarn, machine) == asked("1638m"), "a tenth of the heap")
    val factor = yarn.clone().set("spark.executor.memoryOverheadFactor", "0.25")
    assert(HeapCap.resolve(None, factor, machine) == asked("4g"))
    val least = yarn.clone().set("spark.executor.minMemoryOverhead", "3g")
    assert(HeapCap.resolve(None, least, machine) == asked("3g"))
    assert(HeapCap.resolve(None, yarn.clone().set("spark.master", "k8s://host"), machine) == asked("1638m"))
    val small = yarn.clone().set("spark.executor.memory", "1g")
    assert(refusal(None, small, machine).contains("raise spark.executor.memoryOverhead"), "384 MiB are too few")
  }

  test("Spark's default of the overhead is no bound in a container with a limit, on the driver or without a manager") {
    val machine = Machine(limit = 64 * gib, container = false, jvmHeap = 16 * gib)
    val yarn = bare.clone().set("spark.master", "yarn").set("spark.executor.memory", "16g")
    val free = HeapCap.resolve(None, bare, machine)
    assert(free > 40 * gib)
    assert(HeapCap.resolve(None, yarn, machine.copy(container = true)) == free)
    assert(HeapCap.resolve(None, yarn.clone().set("spark.executor.id", "driver"), machine) == free)
    for (master <- Seq("local[4]", "local-cluster[2,1,1024]", "spark://host:7077"))
      assert(HeapCap.resolve(None, yarn.clone().set("spark.master", master), machine) == free)
    assert(HeapCap.resolve(Some("4g"), yarn, machine) == 4 * gib, "a set cap is the user's word")
  }

  private def refusal(setting: Option[String], conf: SparkConf, machine: Machine): String = {
    val error = intercept[LaminaError](HeapCap.resolve(setting, conf, machine))
    assert(error.kind == LaminaError.MemoryCap)
    error.getMessage
  }

  test("the limit is that of the control group, of either version, or else the machine's memory") {
    val physical = 16 * gib
    val cgroups = Files.createTempDirectory("lamina-cgroups-")
    val (second, first) = (cgroups.resolve("memory.max"), cgroups.resolve("memory/memory.limit_in_bytes"))
    def found: Machine = Machine.of(cgroups, physical, 2 * gib)
    try {
      assert(found == Machine(physical, container = false, 2 * gib))
      Files.createDirectory(first.getParent)
      Files.writeString(first, "9223372036854771712\n")
      assert(found == Machine(physical, container = false, 2 * gib))
      Files.writeString(first, s"${4 * gib}\n")
      assert(found == Machine(4 * gib, container = true, 2 * gib))
      Files.writeString(second, "max\n")
      assert(found == Machine(4 * gib, container = true, 2 * gib))
      Files.writeString(second, s"${3 * gib}\n")
      assert(found == Machine(3 * gib, container = true, 2 * gib))
    } finally Seq(second, first, first.getParent, cgroups).foreach(Files.deleteIfExists)
  }

  test("a cap that is no size is refused by name") {
    val error = intercept[LaminaError](HeapCap.resolve(Some("much"), bare, container))
    assert(error.kind == LaminaError.SettingsInvalid)
    assert(error.getMessage.contains("heap.maxBytes"))
  }
}
