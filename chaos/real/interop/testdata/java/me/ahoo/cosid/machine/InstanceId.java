package me.ahoo.cosid.machine;

public class InstanceId {}
