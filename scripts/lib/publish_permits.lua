-- lib/publish_permits: publish a number of permits to the waiters.
-- It is never below 0, or beyond an int: Redisson's waiters could not read it.
-- defines  publish_permits(publish, channel, permits): how many received the message
local function publish_permits(publish, channel, permits)
  if permits >= 0 then
    return redis.call(publish, channel, math.min(permits, 2147483647))
  end
  return 0
end
