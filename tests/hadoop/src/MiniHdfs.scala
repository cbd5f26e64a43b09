package org.apache.spark.sql.lamina.hdfs

import java.io.File

import scala.io.StdIn
import scala.jdk.CollectionConverters._

import org.apache.hadoop.conf.Configuration
import org.apache.hadoop.hdfs.MiniDFSCluster
import org.apache.hadoop.metrics2.impl.MetricsCollectorImpl
import org.apache.hadoop.metrics2.lib.DefaultMetricsSystem

/**
 * A name node and a data node of HDFS below the directory `arguments(0)`, until standard input ends.
 *
 * The first line of standard output has the file system's URLs, the second one of them over HTTP. Each line of standard input is answered by how often the
 * name node has created, renamed and deleted files, and looked one up.
 */
object MiniHdfs {
  private val Operations = Seq("CreateFileOps", "FilesRenamed", "DeleteFileOps", "FileInfoOps")

  def main(arguments: Array[String]): Unit = {
    val conf = new Configuration
    conf.set("dfs.permissions.enabled", "false")
    val cluster = new MiniDFSCluster.Builder(conf, new File(arguments(0))).numDataNodes(1).build()
    try {
      println(s"${cluster.getURI} webhdfs://127.0.0.1:${cluster.getNameNode.getHttpAddress.getPort}")
      while (StdIn.readLine() != null) println(counts.mkString(" "))
    } finally cluster.shutdown()
  }

  /** Asked of the source itself: what JMX tells is seconds old. */
  private def counts: Seq[Number] = {
    val collector = new MetricsCollectorImpl
    DefaultMetricsSystem.instance.getSource("NameNodeActivity").getMetrics(collector, true)
    val values = collector.getRecords.asScala.flatMap(_.metrics.asScala).map(one => one.name -> one.value).toMap
    Operations.map(values)
  }
}
