#!/usr/bin/env bash
# Entry point of the image `spark`. Pods of Spark on Kubernetes start `driver` or `executor` with variables that Spark
# sets, as with Spark's own images, whose entry point pyspark's package lacks. Anything else is a command of pbg.
set -euo pipefail
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

case ${1:-} in
  driver)
    shift
    exec tini -s -- "$SPARK_HOME/bin/spark-submit" \
      --conf "spark.driver.bindAddress=$SPARK_DRIVER_BIND_ADDRESS" \
      --conf "spark.executorEnv.SPARK_DRIVER_POD_IP=$SPARK_DRIVER_BIND_ADDRESS" \
      --deploy-mode client "$@"
    ;;
  executor)
    # By number: of two options of one name, Java takes the last one.
    options=()
    for ((number = 0; ; number++)); do
      name=SPARK_JAVA_OPT_$number
      [[ -v $name ]] || break
      options+=("${!name}")
    done
    # Settings first, and the work directory last, to which an executor fetches files of the application.
    classes=$SPARK_HOME/jars/*
    for further in "${SPARK_EXTRA_CLASSPATH:-}" "${SPARK_DIST_CLASSPATH:-}" "$PWD"; do
      classes+=${further:+:$further}
    done
    for settings in "${HADOOP_CONF_DIR:-}" "${SPARK_CONF_DIR:-}"; do
      classes=${settings:+$settings:}$classes
    done
    exec tini -s -- "$java" ${options[@]+"${options[@]}"} \
      "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" -cp "$classes" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" \
      --executor-id "$SPARK_EXECUTOR_ID" \
      --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" \
      --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
      --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec pbg "$@"
    ;;
esac
