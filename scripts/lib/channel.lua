-- lib/channel: what a release will need is found out before an acquisition succeeds.
-- defines  may_publish(command, channel): nil, or the error to return (servers before 7.0 cannot tell and are believed)
local function may_publish(command, channel)
  if redis.acl_check_cmd and not redis.acl_check_cmd(command, channel, '0') then
    return redis.error_reply('NOPERM the release of this lock could not be published on channel ' .. channel)
  end
end
