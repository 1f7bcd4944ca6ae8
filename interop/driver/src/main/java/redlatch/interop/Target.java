package redlatch.interop;

import java.util.List;

/**
 * Names one Redisson object. Equal targets share one Java object. {@code handle} distinguishes
 * several Java objects with the same name. {@code members} are the locks of a {@code multi} or
 * {@code red} lock, which may belong to several clients.
 */
record Target(String client, String kind, String name, String handle, List<Target> members) {}
