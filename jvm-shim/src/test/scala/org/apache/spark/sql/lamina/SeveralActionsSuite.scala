package org.apache.spark.sql.lamina

import java.nio.file.Files
import java.util.UUID

import scala.jdk.CollectionConverters._
import scala.util.Using

import org.apache.spark.sql.execution.streaming.state.StateStoreId

/** Several actions of one batch with the changelog and level `executor`: each opens the store that the one before has changed. */
class SeveralActionsSuite extends ProviderFixture {

  /** A group waits for longer for further stores than a commit may take. */
  private val settings = Map(
    "changelog.enabled" -> "true",
    "durability.level" -> "executor",
    "changelog.batchDelayMs" -> "60000",
    "changelog.barrierTimeoutMs" -> "7200000",
    "retention.minAgeMs" -> "86400000",
    "engine.requestTimeoutMs" -> "30000"
  )

  /** Both stores are of one run, whose entries of Spark's commit log wait for what is durable. */
  private val hadoopKeys = Map(
    Compat.runIdKey -> UUID.randomUUID().toString,
    "spark.sql.streaming.checkpointFileManagerClass" -> classOf[LaminaCheckpointFileManager].getName
  )

  test("the second one has the first one's commit wait for no other store") {
    val root = newCheckpoint().resolve("state")
    val ids = Seq("left", "right").map(StateStoreId(root.toString, 0, 0, _))
    val providers = ids.map(init(new StreamingProvider, _, settings = settings, hadoopKeys = hadoopKeys))
    def objects(): Int = {
      val logs = root.resolve("_lamina/log")
      if (Files.exists(logs)) Using.resource(Files.list(logs))(_.iterator.asScala.size) else 0
    }
    def action(number: Int, store: Int, base: Option[String]): Option[String] = asTask(TestTasks.context(number)) {
      commit(providers(store), if (base.isEmpty) 0 else 1, base)(put(_, number.toLong -> number))
    }
    // the first commit of a store is a file of its own
    val first = Seq(0, 1).map(store => action(1, store, None))
    val once = Seq(0, 1).map(store => action(2, store, first(store)))
    assert(objects() == 0)
    val twice = action(3, 0, first.head)
    assert(objects() == 1)
    // both stores have committed in one batch, so this commit waits for one of the other store
    providers.head.getReadStore(2, twice).abort()
    assert(objects() == 2)
    assert(restored(ids.head, 2, twice) == Map(1L -> 1, 3L -> 3))
    Seq(0, 1).foreach(store => assert(restored(ids(store), 2, once(store)) == Map(1L -> 1, 2L -> 2)))
    providers.foreach(_.close())
  }
}
