-- lib/publish_permits: publish a number of permits to the waiters, never one below 0.
-- defines  publish_permits(publish, channel, permits): how many received the message
local function publish_permits(publish, channel, permits)
  if permits >= 0 then
    return redis.call(publish, channel, permits)
  end
  return 0
end
