// Builds, tests and publishes the JVM shim, once per Spark minor, from shared sources and one small folder per minor.
// Spark 4.3 is compiled against the jars of an installed pyspark 4.3 (environment variable LAMINA_PYSPARK_JARS, which the
// Makefile sets); Spark 4.2 against Maven Central.

ThisBuild / organization := "io.lamina"
ThisBuild / scalaVersion := "2.13.18"
ThisBuild / version := {
  val text = IO.read(file("python/lamina/_version.py"))
  "__version__ = \"([^\"]+)\"".r.findFirstMatchIn(text).map(_.group(1)).getOrElse(sys.error("no __version__"))
}

// Each project has two groups of tests, see `forkedTests`.
Global / concurrentRestrictions := Seq(Tags.limitAll(2), Tags.limit(Tags.ForkedTestGroup, 2))

lazy val pysparkJars = sys.env.get("LAMINA_PYSPARK_JARS").map(file(_))

// Whether the installed pyspark is 4.3; with Python 3.10 it is 4.2.
lazy val isSpark43 = pysparkJars.exists(jars => (jars * "spark-core_2.13-4.3.*.jar").get.nonEmpty)

lazy val root = (project in file("."))
  .aggregate(spark42, spark43)
  .settings(publish / skip := true, target := file("build/sbt/root"))

// Spark's own suites run the operators on 4.2, and tables, their memory, the registry's model and the wire are the same code
// on both minors: where 4.3 is there, too, their suites run on 4.2 in the nightly profile only.
lazy val spark42 = shim("4.2").settings(
  libraryDependencies += "org.apache.spark" %% "spark-sql" % "4.2.0" % Provided,
  Test / testOptions ++= {
    val sameOnBoth =
      Seq(".lamina.table.", ".lamina.model.", ".lamina.wire.", ".LayeredMemorySuite", ".OperatorsOnTablesSuite")
    val again = Seq(".OperatorsSuite") ++ (if (isSpark43) sameOnBoth else Nil)
    if (sys.env.contains("LAMINA_REPEATS")) Nil
    else Seq(Tests.Filter(suite => !again.exists(suite.contains)))
  }
)

lazy val spark43 = shim("4.3").settings(
  autoScalaLibrary := false,
  Compile / unmanagedJars ++= {
    val jars = pysparkJars.getOrElse(sys.error("set LAMINA_PYSPARK_JARS to pyspark 4.3's jars"))
    if (!isSpark43) sys.error(s"$jars holds no Spark 4.3")
    (jars * "*.jar").classpath
  }
)

// Spark's own test suites on this provider: slow, so apart from the tests of the shim. They see the shim as users do, as a
// jar with the engine in it. Some of their resources only load from a directory, so those are unpacked.
lazy val suites42 = Project("suites42", file("build/sbt/suites-4.2")).settings(
  publish / skip := true,
  target := file("build/sbt/suites-4.2/target").getAbsoluteFile,
  Test / unmanagedSourceDirectories := Seq(file("jvm-shim/src/suites/scala").getAbsoluteFile),
  Test / unmanagedResourceDirectories := Seq(file("jvm-shim/src/suites/resources").getAbsoluteFile),
  scalacOptions ++= compilerOptions,
  libraryDependencies ++= Seq("core", "sql", "catalyst", "sql-api", "common-utils", "tags").flatMap { module =>
    val spark = "org.apache.spark" %% s"spark-$module" % "4.2.0" % Test
    Seq(spark, spark.classifier("tests"))
  },
  libraryDependencies ++= Seq(
    "org.scalatest" %% "scalatest" % "3.2.19" % Test,
    "org.scalatestplus" %% "scalacheck-1-18" % "3.2.19.0" % Test,
    "org.scalatestplus" %% "mockito-5-12" % "3.2.19.0" % Test
  ),
  Test / unmanagedJars ++= {
    val resources = target.value / "spark-test-resources"
    if (!resources.exists) {
      val jars = (Test / update).value.matching(artifactFilter(name = "spark-sql_2.13", classifier = "tests"))
      IO.unzip(jars.head, resources, (name: String) => !name.endsWith(".class"))
    }
    Seq(Attributed.blank((spark42 / Compile / packageBin).value), Attributed.blank(resources))
  },
  forkedTests,
  // As in Spark's own build, so that executors of a local cluster start without an installed Spark.
  Test / envVars ++= Map(
    "SPARK_HOME" -> target.value.getPath,
    "SPARK_TESTING" -> "1",
    "SPARK_SCALA_VERSION" -> "2.13"
  ),
  Test / javaOptions ++= Seq(
    "-ea",
    "-Dspark.testing=true",
    s"-Dspark.test.home=${target.value}",
    s"-Djava.io.tmpdir=${target.value / "tmp"}",
    "-Dspark.sql.streaming.stateStore.providerClass=org.apache.spark.sql.lamina.OneRunProvider"
  ),
  // Thousands of short queries: a third of the processor time went to the second compiler, which none of them needs. The
  // nightly profile has it, since re-ordering shows under it.
  Test / javaOptions ++= (if (sys.env.contains("LAMINA_ALL_COMPILERS")) Nil else Seq("-XX:TieredStopAtLevel=1")),
  // One compiler alone gets 48 MiB for its code, which is full after a few minutes; nothing is compiled any more then.
  Test / javaOptions += "-XX:ReservedCodeCacheSize=240m",
  Test / testGrouping := {
    IO.createDirectory(target.value / "tmp")
    (Test / testGrouping).value
  }
)

def shim(minor: String): Project = {
  val id = s"spark${minor.replace(".", "")}"
  val shimSources = file("jvm-shim/src")
  Project(id, file(s"build/sbt/$minor")).settings(
    name := s"lamina-spark-$minor",
    moduleName := s"lamina-spark-$minor",
    target := file(s"build/sbt/$minor/target").getAbsoluteFile,
    Compile / unmanagedSourceDirectories :=
      Seq(shimSources / "main/scala", shimSources / s"main/scala-spark-$minor").map(_.getAbsoluteFile),
    Compile / unmanagedResourceDirectories := Seq((shimSources / "main/resources").getAbsoluteFile),
    Test / unmanagedSourceDirectories :=
      Seq(shimSources / "test/scala", shimSources / s"test/scala-spark-$minor").map(_.getAbsoluteFile),
    Test / unmanagedResourceDirectories := Seq((shimSources / "test/resources").getAbsoluteFile),
    scalacOptions ++= compilerOptions,
    libraryDependencies ++= Seq(
      "org.scalatest" %% "scalatest" % "3.2.19" % Test,
      "org.scalatestplus" %% "scalacheck-1-18" % "3.2.19.0" % Test,
      "org.scalacheck" %% "scalacheck" % "1.18.1" % Test
    ),
    // The jar is what the wheel carries: classes, the engine's Python sources, and what it was built for.
    Compile / resourceGenerators += Def.task {
      val properties = (Compile / resourceManaged).value / "lamina-build.properties"
      IO.write(properties, s"version=${version.value}\nsparkMinor=$minor\n")
      Seq(properties)
    },
    Compile / packageBin / mappings ++= {
      val python = file("python").getAbsoluteFile
      val engine = (python / "lamina" ** "*.py").get.map(path => path -> IO.relativize(python, path).get)
      engine :+ (file("LICENSE").getAbsoluteFile -> "META-INF/LICENSE")
    },
    Compile / doc / sources := Nil,
    Compile / packageDoc / publishArtifact := false,
    publishM2Configuration := publishM2Configuration.value.withOverwrite(true),
    // Spark itself provides everything, so that `--packages` has nothing else to resolve.
    pomPostProcess := { pom =>
      pom.asInstanceOf[scala.xml.Elem].copy(child = pom.child.filter(_.label != "dependencies"))
    },
    description := s"State store provider of lamina for Spark $minor",
    licenses := Seq("Apache-2.0" -> url("https://www.apache.org/licenses/LICENSE-2.0")),
    forkedTests
  )
}

lazy val compilerOptions = Seq("-Xlint", "-Werror", "-deprecation", "-feature", "-unchecked", "-encoding", "UTF-8")

lazy val forkedTests: Seq[Setting[_]] = Seq(
  Test / fork := true,
  // Two JVMs side by side, each with every second suite: one alone leaves much of the second core idle.
  Test / parallelExecution := true,
  Test / testGrouping := {
    val fork = (Test / testGrouping).value.head.runPolicy
    val suites = (Test / definedTests).value.sortBy(_.name).zipWithIndex
    for (half <- Seq(0, 1)) yield {
      Tests.Group(s"half $half", suites.collect { case (suite, index) if index % 2 == half => suite }, fork)
    }
  },
  Test / baseDirectory := file(".").getAbsoluteFile,
  Test / javaOptions ++= Seq("-Xmx2g", "-Xss4m", "-XX:+IgnoreUnrecognizedVMOptions") ++ sparkModuleOptions,
  Test / javaOptions += s"-Dlog4j2.configurationFile=${file("project/log4j2-test.properties").getAbsoluteFile.toURI}",
  // Which seeds of the concurrent model run, see docs/guide/operations.md.
  Test / javaOptions ++= sys.props.toSeq.collect { case (key, value) if key.startsWith("lamina.") => s"-D$key=$value" },
  Test / testOptions += Tests.Argument(TestFrameworks.ScalaTest, "-oDF")
)

// What Spark's own launcher passes to its JVMs (org.apache.spark.launcher.JavaModuleOptions).
lazy val sparkModuleOptions = Seq(
  "java.base/java.lang",
  "java.base/java.lang.invoke",
  "java.base/java.lang.reflect",
  "java.base/java.io",
  "java.base/java.net",
  "java.base/java.nio",
  "java.base/java.util",
  "java.base/java.util.concurrent",
  "java.base/java.util.concurrent.atomic",
  "java.base/jdk.internal.ref",
  "java.base/sun.nio.ch",
  "java.base/sun.nio.cs",
  "java.base/sun.security.action",
  "java.base/sun.util.calendar"
).map(module => s"--add-opens=$module=ALL-UNNAMED") ++ Seq(
  "--add-modules=jdk.incubator.vector",
  "-Djdk.reflect.useDirectMethodHandle=false",
  "-Dio.netty.tryReflectionSetAccessible=true"
)
