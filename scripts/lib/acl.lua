-- lib/acl: find out before the first write whether the user may publish the message that follows.
-- An acquisition asks, because its release must be able to publish.
-- defines  publish_denied(publish, channel)

-- publish_denied returns nil if the user may run the command publish on the channel, else the error
-- to return. Servers before 7.0 cannot tell; there it returns nil.
local function publish_denied(publish, channel)
  if redis.acl_check_cmd and not redis.acl_check_cmd(publish, channel, '0') then
    return redis.error_reply('NOPERM this user may not publish on channel ' .. channel)
  end
end
