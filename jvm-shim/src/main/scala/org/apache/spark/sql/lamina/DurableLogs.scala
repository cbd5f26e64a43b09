package org.apache.spark.sql.lamina

/**
 * What this JVM has heard of log objects: which are durable, and which will never be. Who waits for an object looks here first,
 * and is woken; where another executor wrote it, the storage is asked, when `BarrierNews` say
 * that it is worth it.
 */
private[lamina] object DurableLogs {
  private val heard = new Recent[String, Option[Throwable]]
  private val said = new Recent[String, Boolean]

  /** @param failure why the object will not be there, if it will not */
  def tell(log: String, failure: Option[Throwable]): Unit = synchronized {
    // one commit of an object may be given up while the object itself becomes durable
    if (failure.isEmpty || heard.get(log).isEmpty) heard.put(log, failure)
    notifyAll()
  }

  /** None where nothing is known; why it will not be there, or that it is. */
  def outcome(log: String): Option[Option[Throwable]] = synchronized(heard.get(log))

  /** An executor says that an object is there. It counts when it is seen. */
  def say(log: String): Unit = synchronized {
    said.put(log, true)
    notifyAll()
  }

  def isSaid(log: String): Boolean = synchronized(said.get(log).isDefined)

  /** Waits for news, at most so long. */
  def await(ms: Long): Unit = synchronized(wait(ms))
}
