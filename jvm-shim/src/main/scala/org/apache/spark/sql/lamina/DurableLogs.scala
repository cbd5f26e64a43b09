package org.apache.spark.sql.lamina

import java.util.{LinkedHashMap, Map => JMap}

/**
 * What this JVM has heard of log objects: which are durable, and which will never be. Who waits for an object looks here first,
 * and is woken; where another executor wrote it, nothing is heard, and the storage is asked.
 */
private[lamina] object DurableLogs {
  private val Kept = 4096

  private val heard = new LinkedHashMap[String, Option[Throwable]] {
    override def removeEldestEntry(eldest: JMap.Entry[String, Option[Throwable]]): Boolean = size > Kept
  }

  /** @param failure why the object will not be there, if it will not */
  def tell(log: String, failure: Option[Throwable]): Unit = synchronized {
    // one commit of an object may be given up while the object itself becomes durable
    if (failure.isEmpty || !heard.containsKey(log)) heard.put(log, failure)
    notifyAll()
  }

  /** None where nothing is known; why it will not be there, or that it is. */
  def outcome(log: String): Option[Option[Throwable]] = synchronized(Option(heard.get(log)))

  /** Waits for news, at most so long. */
  def await(ms: Long): Unit = synchronized(wait(ms))
}
