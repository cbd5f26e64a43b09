package org.apache.spark.sql.lamina.model

/** What holds at any time, whatever order the threads go on in. A violation is known by the name of its rule. */
private[lamina] object Rules {
  val ReadsItsVersion = "an open that is not stale reads exactly the rows of its version"
  val KeepsBytes = "rows that were handed out in place keep their bytes as long as their task lives"
  val FailedIsInvisible = "a commit whose publication failed is not visible"
  val EndsDurable = "a task ends well when its commits are durable, under the ids that they were accepted as"
  val OneWriter = "there is one writer, and its table is in use"
  val KeepsTransaction = "a writer whose task lives keeps its transaction"
  val ReadsOn = "a task that reads on what it has committed is not cut off"
  val SendsWhatChanged = "a commit sends what changed between its base and itself"
  val NoLockOverEngine = "no lock of a table is held while the engine is called"
  val OpensOneByOne = "opens of one provider ask the engine one after the other"
  val NoTransactionIsLost = "an open or a commit fails only for a reason that it can name"
  val NothingIsLeft = "nothing is left when all tasks have ended and all providers are closed"
  val RunningKeepsItsTable = "a table of a query that runs is not evicted"
  val NoWaitForEver = "nobody waits for ever"
  val NoHiddenWait = "threads wait only where the scheduling is asked"
}
